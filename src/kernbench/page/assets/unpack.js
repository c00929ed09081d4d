// Columns of integers: base64 of raw deflate of zigzag varints, each the difference to the one before.

async function unpack(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return unpackBytes(new Uint8Array(await new Response(stream).arrayBuffer()), packed);
}

function unpackBytes(bytes, { rows, columns }) {
  const table = { rows };
  let position = 0;
  for (const name of columns) {
    const values = new Float64Array(rows);
    let last = 0;
    for (let row = 0; row < rows; row++) {
      let digit = bytes[position++];
      let value = digit & 127;
      // Shifts would end at 32 bits; picoseconds need more.
      for (let scale = 128; digit > 127; scale *= 128) {
        digit = bytes[position++];
        value += (digit & 127) * scale;
      }
      last += value % 2 ? -(value + 1) / 2 : value / 2;
      values[row] = last;
    }
    table[name] = values;
  }
  return table;
}
