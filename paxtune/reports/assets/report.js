(async () => {
  const unpacked = (id) => {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    return new Response(stream).text();
  };
  const script = document.createElement('script');
  script.textContent = await unpacked('plotly');
  document.head.append(script);
  const { template, figures } = JSON.parse(await unpacked('figures'));
  for (const [id, { data, layout }] of Object.entries(figures)) {
    await Plotly.newPlot(id, data, { ...layout, template }, { responsive: true, displaylogo: false });
  }
  document.body.dataset.drawn = 'yes';
})().catch((error) => {
  document.getElementById('problem').textContent = `The figures were not drawn: ${error}`;
});
