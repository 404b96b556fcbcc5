// The colours, which a browser remembers, the names of open views, and roles of Dash's controls.
(() => {
  const KEY = 'paxtune-scheme';
  const root = document.documentElement;
  const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');

  const kept = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;  // The browser forbids storage.
    }
  };
  const scheme = () => kept() || (prefersDark.matches ? 'dark' : 'light');

  const keep = chosen => {
    try {
      if ((chosen === 'dark') === prefersDark.matches) {
        localStorage.removeItem(KEY);
      } else {
        localStorage.setItem(KEY, chosen);
      }
    } catch {
      // The choice holds for this page.
    }
  };

  const paint = chosen => {
    root.style.colorScheme = chosen;
    root.dataset.scheme = chosen;
  };
  const label = () => {
    const button = document.getElementById('scheme');
    if (button) button.setAttribute('aria-pressed', String(root.dataset.scheme === 'dark'));
  };

  const name = () => {
    const [heading, current] = [document.querySelector('h1'), document.querySelector('nav a.current')];
    if (!heading) return;
    for (const link of document.querySelectorAll('nav a')) {
      if (link === current) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    const view = current || document.querySelector('main h2');
    const title = view ? `${view.textContent} · ${heading.textContent}` : heading.textContent;
    if (document.title !== title) document.title = title;
  };

  // Dash's dropdowns: a hidden input has the focus in place of the button, which has no label.
  const mend = () => {
    document.querySelectorAll('.dash-dropdown-focus-target').forEach((input, index) => {
      const button = input.nextElementSibling;
      const label = input.closest('label')?.querySelector('span');
      if (input.tabIndex !== -1) input.tabIndex = -1;
      if (!button || button.tabIndex === 0) return;
      button.tabIndex = 0;
      if (!label) return;
      label.id ||= `label-${index}-${button.id}`;
      button.setAttribute('aria-labelledby', `${label.id} ${button.id}`);
    });
  };

  // Dash's check boxes: they are in a list box without a name, whose options hold controls.
  const group = () => {
    for (const list of document.querySelectorAll('.dash-checklist[role="listbox"]')) {
      list.setAttribute('role', 'group');
      const legend = list.closest('fieldset')?.querySelector('legend');
      list.setAttribute('aria-label', legend ? legend.textContent : 'Choices');
    }
    for (const option of document.querySelectorAll('.dash-checklist [aria-selected]')) {
      option.removeAttribute('role');
      option.removeAttribute('aria-selected');
    }
    // The grid has a row of headings without cells beside its pinned columns.
    for (const row of document.querySelectorAll('.ag-header-row')) {
      const isEmpty = row.childElementCount === 0;
      if (isEmpty && row.tabIndex !== -1) row.tabIndex = -1;
      if (isEmpty) row.setAttribute('aria-hidden', 'true');
      else row.removeAttribute('aria-hidden');
    }
  };

  // The keyboard scrolls a table, or a figure, that is wider than its place.
  const reach = () => {
    for (const part of document.querySelectorAll('.scroll, .figure')) {
      const isWide = part.scrollWidth > part.clientWidth
        && getComputedStyle(part).overflowX !== 'visible';
      if (isWide && part.tabIndex !== 0) part.tabIndex = 0;
      if (!isWide && part.hasAttribute('tabindex')) part.removeAttribute('tabindex');
    }
  };

  paint(scheme());
  prefersDark.addEventListener('change', () => { paint(scheme()); label(); });
  document.addEventListener('click', event => {
    if (event.target.id !== 'scheme') return;
    const chosen = root.dataset.scheme === 'dark' ? 'light' : 'dark';
    keep(chosen);
    paint(chosen);
    label();
  });
  window.addEventListener('resize', reach);
  let isDue = false;
  const soon = () => {
    if (isDue) return;
    isDue = true;
    setTimeout(() => { isDue = false; name(); label(); mend(); group(); reach(); }, 50);
  };
  new MutationObserver(soon).observe(root, {
    childList: true, subtree: true, attributeFilter: ['class', 'tabindex', 'aria-selected'],
  });
})();
