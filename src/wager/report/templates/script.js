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
