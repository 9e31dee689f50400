// The texts on the page whose contrast is too low, each with the contrast.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((each, place) => each * a + under[place] * (1 - a));
  const ground = (element) => {
    const under = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return over(rgba(getComputedStyle(element).backgroundColor), under);
  };
  const light = (color) => {
    const [r, g, b] = color.map((each) => (each /= 255) <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest("option, noscript, :disabled")) continue;
    const behind = ground(element), own = over(rgba(getComputedStyle(element).color), behind);
    const [a, b] = [light(behind), light(own)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) low.push([text.slice(0, 40), element.className || element.tagName, contrast.toFixed(2)]);
  }
  return low;
}
