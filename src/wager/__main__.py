from wager.cli import main

main()
