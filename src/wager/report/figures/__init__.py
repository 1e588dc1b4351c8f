"""The figures of a report, one module each: from numbers to a chart, its table and where it comes from."""
