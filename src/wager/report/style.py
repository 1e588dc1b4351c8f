"""The page's style sheet and its few lines of script; nothing is fetched."""

LIGHT = """
--bg:#f6f6f3;--card:#fff;--ink:#1b1f24;--soft:#57606a;--hair:#e2e4e1;--shade:#f0f1ee;
--c0:#8b949e;--c1:#0069a8;--c2:#c4500a;--c3:#00805a;--c4:#a4478a;--c5:#9a6b00;--c6:#2a8fc7;--c7:#75471d;--c8:#5b5bb5;
--bonus:#57606a;--tip:#1b1f24;--tip-ink:#fff;
"""
DARK = """
--bg:#101317;--card:#181c22;--ink:#e8eaed;--soft:#a3adb8;--hair:#2b313a;--shade:#20252c;
--c0:#7d8792;--c1:#58b4f2;--c2:#ff9255;--c3:#3fcb9c;--c4:#e79ac8;--c5:#efbb4e;--c6:#a5dcff;--c7:#cfa57c;--c8:#aeb0ff;
--bonus:#a3adb8;--tip:#e8eaed;--tip-ink:#101317;
"""

CSS = (
    ":root{color-scheme:light dark;" + LIGHT.replace("\n", "") + "}"
    "@media(prefers-color-scheme:dark){:root{" + DARK.replace("\n", "") + "}}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
main,header,footer{max-width:1168px;margin:0 auto;padding:0 24px}
header{padding-top:56px}
.brand{font-weight:650;letter-spacing:.02em;color:var(--soft);font-size:14px;margin:0 0 20px}
.brand b{color:var(--ink)}
h1{font-size:clamp(26px,3.6vw,42px);line-height:1.18;letter-spacing:-.02em;font-weight:680;margin:0 0 16px;
max-width:26em;
text-wrap:balance;overflow-wrap:anywhere}
.lede{color:var(--soft);font-size:17px;max-width:46em;margin:0 0 6px;overflow-wrap:anywhere}
.lede b{color:var(--ink);font-weight:600}
.live{display:inline-block;margin:0 0 20px;padding:4px 12px;border-radius:99px;background:var(--shade);font-size:14px}
.live::before{content:"";display:inline-block;width:8px;height:8px;border-radius:50%;background:var(--c3);
margin-right:8px}
.big{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:16px;margin:36px 0 0;padding:0}
.big div{background:var(--card);border:1px solid var(--hair);border-radius:14px;padding:20px 22px;min-width:0;
display:flex;flex-direction:column}
.big dd{margin:0;order:-1;font-size:clamp(26px,2.9vw,38px);font-weight:680;letter-spacing:-.02em;line-height:1.15;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.big dt{font-weight:600;margin-top:6px;overflow-wrap:anywhere}.big span{display:block;color:var(--soft);
font-size:14px;font-weight:400}
.others{list-style:none;margin:28px 0 0;padding:0;display:grid;gap:10px}
.others li{display:grid;grid-template-columns:14em minmax(0,1fr);gap:2px 20px;font-size:15px;overflow-wrap:anywhere}
.others b{font-weight:600}.others span{color:var(--soft)}
nav{margin:32px 0 0;display:flex;flex-wrap:wrap;gap:8px}
nav a{color:var(--ink);text-decoration:none;border:1px solid var(--hair);border-radius:99px;padding:5px 14px;
font-size:14px}
nav a:hover{background:var(--shade)}
h2{font-size:24px;letter-spacing:-.01em;margin:64px 0 20px;font-weight:660}
.cards{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:24px}
figure{margin:0;background:var(--card);border:1px solid var(--hair);border-radius:14px;padding:28px;min-width:0;
grid-column:1/-1;display:flex;flex-direction:column}
figure.half{grid-column:auto}
h3{font-size:18px;margin:0 0 4px;font-weight:640;line-height:1.35;overflow-wrap:anywhere}
h4{font-size:14px;margin:0 0 6px;font-weight:640}
.says{color:var(--soft);margin:0 0 22px;max-width:46em;overflow-wrap:anywhere}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(290px,100%),1fr));gap:28px 36px;margin-top:28px}
svg{display:block;width:100%;height:auto;overflow:visible}
.v330,.v640{display:none}
svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
svg text.name{fill:var(--ink);font-weight:600}svg text.strong{fill:var(--ink);font-weight:680}
svg text.value{fill:var(--ink)}
.grid{stroke:var(--hair);stroke-width:1}.zero{stroke:var(--soft);stroke-width:1}
.base{stroke:var(--ink);stroke-width:1.25;stroke-dasharray:3 3}.part{stroke:var(--card);stroke-width:1.5}
.line{fill:none;stroke-width:2.25;stroke-linejoin:round;stroke-linecap:round}.faint{stroke-width:1;opacity:.4}
.band{opacity:.14}.dot{stroke:var(--card);stroke-width:1.5}
.halo{fill:none;stroke:var(--card);stroke-width:3.6;opacity:.6}
.whisker{fill:none;stroke:var(--ink);stroke-width:1.4;opacity:.85}
.column,.hit{fill:transparent}.column:hover{fill:var(--ink);fill-opacity:.06}
.mark:hover>.hit{fill:var(--shade)}.slab:hover{opacity:.8}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:6px 20px;padding:0;margin:18px 0 0;font-size:14px}
.legend li{display:flex;align-items:center;gap:8px;min-width:0;overflow-wrap:anywhere}
.legend .hollow{border:1.5px solid var(--hair)}.legend i{flex:none;width:14px;height:14px;border-radius:4px}
.legend svg{flex:none;width:28px;height:10px}
.says+.legend{margin-top:0}.legend+.switch{margin-top:16px}
.foot{margin-top:auto;padding-top:20px;font-size:14px;color:var(--soft)}
.foot p{margin:0 0 8px;overflow-wrap:anywhere}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
summary{cursor:pointer;font-weight:560}
summary:focus-visible,a:focus-visible,input:focus-visible,.scroll:focus-visible{outline:2px solid var(--c1);
outline-offset:3px;border-radius:4px}
.foot details[open]>summary{margin-bottom:12px}
.scroll{overflow-x:auto;max-width:100%}.scroll+p{margin-top:14px}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;color:var(--ink)}
caption{text-align:left;color:var(--soft);padding-bottom:8px;font-size:14px}
.numbers th,.numbers td{padding:6px 14px 6px 0;border-bottom:1px solid var(--hair);text-align:right;
white-space:nowrap}
.numbers th:first-child{text-align:left}.numbers thead th{color:var(--soft);font-weight:560}
.numbers tbody th{font-weight:500}.numbers th:first-child{position:sticky;left:0;background:var(--card)}
.heat{width:100%;border-collapse:separate;border-spacing:3px}
.heat th{font-weight:500;text-align:left;padding:4px 8px 4px 0;white-space:nowrap}.heat thead th{color:var(--soft);
text-align:center}
.heat thead th:first-child{text-align:left}.heat td{text-align:center;padding:6px 6px;border-radius:6px;
min-width:44px}
.heat .cell{background:color-mix(in oklab,var(--hue) var(--share),transparent)}
.heat .best{box-shadow:inset 0 0 0 2px var(--ink);font-weight:680}
.heat .sum th,.heat .sum td{border-top:1px solid var(--hair);border-radius:0;font-weight:600}
.switch{display:inline-flex;gap:8px;align-items:center;font-size:14px;margin-bottom:14px;cursor:pointer}
.switch input{width:18px;height:18px;accent-color:var(--c1);margin:0}
.text{border-top:1px solid var(--hair);padding:14px 0}.text summary span{color:var(--soft);font-weight:400;
font-size:14px}
.tokens{white-space:pre-wrap;overflow-wrap:anywhere;line-height:2.05;margin:14px 0 4px;font-size:16px;max-width:62em}
.t{--t:var(--c0);background:color-mix(in oklab,var(--t) 20%,transparent);border-bottom:2.5px solid var(--t);
padding:2px 0;
-webkit-box-decoration-break:clone;box-decoration-break:clone;cursor:default}
.t.plain{background:none;border-bottom-color:transparent}
.t.bonus{background:none;border-bottom:2.5px dotted var(--t)}
.t.lit{background:color-mix(in oklab,var(--t) 42%,transparent)}.t.plain.lit,.t.bonus.lit{background:var(--shade)}
.t:focus-visible{outline:2px solid var(--ink);outline-offset:1px;border-radius:3px}
.t.block{display:inline-block;width:13px;height:20px;margin:1px;border-radius:3px;background:var(--t);border:0;
overflow:hidden;color:transparent}
.t.block.plain,.t.block.bonus{background:color-mix(in oklab,var(--c0) 35%,transparent)}
.whole{white-space:pre-wrap;overflow-wrap:anywhere;color:var(--soft)}
.sign{font-style:normal;opacity:.5}
.rejected{display:none;color:var(--soft);text-decoration:line-through;font-size:.86em;user-select:none}
figure:has(.rejections:checked) .rejected{display:inline}
#tip{position:fixed;z-index:9;max-width:min(320px,calc(100vw - 24px));background:var(--tip);color:var(--tip-ink);
border-radius:9px;padding:9px 13px;font-size:13.5px;line-height:1.45;white-space:pre-line;pointer-events:none;
overflow-wrap:anywhere;box-shadow:0 6px 24px rgb(0 0 0/.22);left:0;top:0;font-variant-numeric:tabular-nums}
#tip::first-line{font-weight:650}
#tip[hidden]{display:none}
.missing{padding-left:20px;color:var(--soft)}.missing li{margin-bottom:8px}.missing b{color:var(--ink);
font-weight:600}
.sources li{margin-bottom:14px;overflow-wrap:anywhere}.sources{padding-left:20px}.sources span{color:var(--soft)}
footer{padding-top:24px;padding-bottom:56px;color:var(--soft);font-size:14px}
@media(max-width:1000px){.cards{grid-template-columns:minmax(0,1fr)}figure.half{grid-column:1/-1}.wide{display:none}
.v640{display:block}}
@media(max-width:560px){main,header,footer{padding-left:16px;padding-right:16px}header{padding-top:32px}
figure{padding:20px 14px}.v640{display:none}.v330{display:block}.others li{grid-template-columns:minmax(0,1fr)}
.big{grid-template-columns:1fr 1fr;gap:10px;margin-top:28px}
.big div{padding:14px 16px}h2{margin-top:48px}.lede{font-size:16px}.heat td{min-width:36px;padding:6px 2px}
.heat th{padding-right:4px}}
@media(prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
@media print{#tip,nav{display:none}figure{break-inside:avoid}}
"""
)

SCRIPT = """
(() => {
  const tip = document.getElementById('tip');
  let at = null;
  const light = (el, on) => {
    if (!el.dataset.round) return;
    const own = el.parentElement.querySelectorAll(`[data-round="${el.dataset.round}"]`);
    for (const t of own) t.classList.toggle('lit', on);
  };
  const hide = () => {
    if (at) { light(at, false); at.removeAttribute('aria-describedby'); }
    at = null;
    tip.hidden = true;
  };
  const show = (el, x, y) => {
    if (at !== el) { hide(); at = el; light(el, true); tip.textContent = el.dataset.tip; tip.hidden = false; }
    if (el.classList.contains('t')) el.setAttribute('aria-describedby', 'tip');
    const w = tip.offsetWidth, h = tip.offsetHeight, wide = document.documentElement.clientWidth;
    tip.style.left = Math.max(8, Math.min(x - w / 2, wide - w - 8)) + 'px';
    tip.style.top = (y - h - 14 > 4 ? y - h - 14 : Math.min(y + 22, innerHeight - h - 4)) + 'px';
  };
  const near = (el) => { const b = el.getClientRects()[0]; return [b.left + b.width / 2, b.top]; };
  const marked = (e) => e.target.closest && e.target.closest('[data-tip]');
  document.addEventListener('pointermove', (e) => {
    if (e.pointerType === 'touch') return;
    const el = marked(e);
    if (el) show(el, e.clientX, el.dataset.round ? near(el)[1] : e.clientY);
    else if (document.activeElement !== at) hide();
  });
  document.addEventListener('pointerleave', hide);
  document.addEventListener('click', (e) => {
    const el = marked(e);
    if (el) show(el, e.clientX, el.dataset.round ? near(el)[1] : e.clientY); else hide();
  });
  document.addEventListener('focusin', (e) => { const el = marked(e); if (el) show(el, ...near(el)); });
  document.addEventListener('focusout', hide);
  addEventListener('scroll', () => {
    if (at && at.matches(':focus-visible')) show(at, ...near(at)); else hide();
  }, { passive: true });
  document.addEventListener('keydown', (e) => {
    if (e.key === 'Escape') return hide();
    const el = e.target;
    if (!el.classList || !el.classList.contains('t')) return;
    const all = [...el.parentElement.querySelectorAll('.t')], i = all.indexOf(el);
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: all.length - 1 }[e.key];
    if (to === undefined || !all[to]) return;
    e.preventDefault();
    el.tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  });
  if (document.querySelector('.live')) {
    const folds = [...document.querySelectorAll('details')], key = 'wager' + location.pathname;
    try {
      const kept = (sessionStorage[key] || '').split(',');
      kept.forEach((open, i) => { if (open && folds[i]) folds[i].open = open === '1'; });
    } catch { /* a page without storage forgets */ }
    addEventListener('toggle', () => {
      try { sessionStorage[key] = folds.map((f) => (f.open ? 1 : 0)).join(); } catch { /* as above */ }
    }, true);
  }
})();
"""
