'use strict';
// Perfetto's trace_processor, the WebAssembly that its UI has in it, asked by a program.
//
//   node engine.js UI_DIR      requests on stdin, one a line: {"load": path} or {"query": sql}; on stdout for each
//                              {"problems": {name: count}} or {"columns": [...]}, {"rows": [[...], ...]} again and
//                              again; then {"end": true}. Or {"error": text} at any point, which is then its last line.
//
// In rows integers are exact, floats have a point or an exponent, and a blob is {"blob": base64}.
//
// UI_DIR's engine_bundle.js is made for a web worker: it is sent a MessagePort, and takes and gives bytes of
// perfetto.protos.TraceProcessorRpcStream through it. Here it finds a world with just what it touches.

const fs = require('fs');
const path = require('path');
const readline = require('readline');
const vm = require('vm');

const uiDir = process.argv[2];
const CHUNK = 8 << 20;  // of what the engine takes at once, which is 32 MiB
const PROBLEMS = "select name, sum(value) from stats where severity in ('error', 'data_loss') and value > 0 group by 1";

// ---- protobuf, as far as needed

function varint(value) {
  const out = [];
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return Buffer.from([...out, rest]);
    out.push(rest % 128 + 128);
  }
}
const integer = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);

class Reader {
  constructor(buffer) { this.buffer = buffer; this.at = 0; }
  get more() { return this.at < this.buffer.length; }
  varint() {  // a number while that is exact, else a BigInt
    let value = 0, scale = 1;
    for (let i = 0; i < 7; i++, scale *= 128) {
      const byte = this.buffer[this.at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
    let big = BigInt(value);
    for (let shift = 49n; ; shift += 7n) {
      const byte = this.buffer[this.at++];
      big |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asIntN(64, big);
    }
  }
  take(size) { return this.buffer.subarray(this.at, this.at += size); }
}

function* fields(buffer) {
  for (const reader = new Reader(buffer); reader.more;) {
    const tag = reader.varint();
    const wire = tag % 8;
    const value = wire === 0 ? reader.varint() : reader.take({1: 8, 5: 4}[wire] ?? reader.varint());
    yield [(tag - wire) / 8, value];
  }
}
const all = (buffer, wanted) => Array.from(fields(buffer)).filter(([f]) => f === wanted).map(([, value]) => value);
const text = (buffer, wanted) => all(buffer, wanted).map((value) => value.toString('utf8')).join('');

// ---- the engine

// The bundle takes its 64-bit engine (16 GB of memory, not 4) if a module with a 64-bit memory compiles. The engine
// has a 64-bit table, too, which older versions of Node do not know.
function knows64BitTables() {
  try {
    return Boolean(new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 4, 4, 1, 0x70, 4, 0])));
  } catch {
    return false;
  }
}

async function start() {
  const wide = knows64BitTables();
  const file = (url) => fs.readFileSync(path.join(uiDir, path.basename(String(url).split('?')[0])));
  let ready;
  const started = new Promise((resolve) => { ready = resolve; });
  const silent = () => {};
  const world = {
    console: {log: silent, info: silent, debug: silent, warn: silent, error: silent},
    performance, setTimeout, clearTimeout, setInterval, clearInterval, queueMicrotask, TextDecoder, TextEncoder, URL,
    crypto: {getRandomValues: (array) => globalThis.crypto.getRandomValues(array)},
    location: {href: 'http://127.0.0.1/'},
    WorkerGlobalScope: class {},
    XMLHttpRequest: class {
      open(_, url) { this.url = url; }
      send() { this.status = 200; this.response = file(this.url); }
    },
  };
  world.self = world.globalThis = world;
  const context = vm.createContext(world);
  const W = vm.runInContext('WebAssembly', context);
  const {Module, Instance, instantiate} = W;
  // The last thing it does before it takes requests is a call of this export.
  const watched = (instance) => ({exports: {...instance.exports, trace_processor_rpc_init(...args) {
    setImmediate(ready);
    return instance.exports.trace_processor_rpc_init(...args);
  }}});
  delete W.instantiateStreaming;
  W.Module = function(code) {
    if (!wide && code.byteLength < 64 && code[8] === 5) throw new Error('no');  // its question, see above
    return new Module(code);
  };
  W.Instance = function(module, imports) { return watched(new Instance(module, imports)); };
  W.instantiate = async (code, imports) => {
    const made = await instantiate.call(W, code, imports);
    return made.instance ? {module: made.module, instance: watched(made.instance)} : watched(made);
  };
  vm.runInContext(file('engine_bundle.js').toString('utf8'), context);
  let replies = [];
  const port = {postMessage: (data) => { replies.push(Buffer.from(data)); }};
  port.port = port;
  const name = wide ? 'trace_processor_memory64.wasm' : 'trace_processor.wasm';
  Object.defineProperty(port, 'wasmModule', {get: () => new Module(file(name))});
  world.onmessage({data: port});
  await started;
  const Uint8 = vm.runInContext('Uint8Array', context);  // it takes its own world's alone
  return (message) => {
    replies = [];
    for (let at = 0; at < message.length; at += CHUNK) {
      const part = message.subarray(at, at + CHUNK);
      port.onmessage({data: new Uint8(part.buffer, part.byteOffset, part.length)});
    }
    return Buffer.concat(replies);
  };
}

// ---- requests; the numbers are those of trace_processor.proto

const APPEND = 1, FINALIZE = 2, QUERY = 3, RESET = 11;
let sequence = 0;

// What the replies to a request have in `field`, joined: pieces of one message.
function call(send, method, args, field) {
  const replies = send(bytes(1, Buffer.concat([integer(1, ++sequence), integer(2, method), args])));
  const found = [];
  for (const reply of all(replies, 1)) {
    const fatal = text(reply, 5);
    if (fatal) throw new Error(fatal);
    found.push(...all(reply, field));
  }
  return Buffer.concat(found);
}

// In the place of what was loaded before.
function load(send, trace) {
  call(send, RESET, Buffer.alloc(0), 107);
  const handle = fs.openSync(trace, 'r');
  const buffer = Buffer.alloc(CHUNK);
  for (let size; (size = fs.readSync(handle, buffer, 0, CHUNK, null)) > 0;) {
    const error = text(call(send, APPEND, bytes(101, buffer.subarray(0, size)), 201), 2);
    if (error) throw new Error(error);
  }
  fs.closeSync(handle);
  const error = text(call(send, FINALIZE, Buffer.alloc(0), 212), 1);
  if (error) throw new Error(error);
}

// A query's result: its columns, and batches of cells. A batch holds whole rows.
function query(send, sql) {
  const result = call(send, QUERY, bytes(103, bytes(1, Buffer.from(sql))), 203);
  const error = text(result, 2);
  if (error) throw new Error(error);
  return {columns: all(result, 1).map(String), batches: all(result, 3)};
}

function rowsOf(batch, width) {
  const parts = {1: [], 2: [], 3: [], 4: [], 5: []};
  for (const [field, value] of fields(batch)) parts[field]?.push(value);
  const integers = new Reader(Buffer.concat(parts[2]));
  const floats = Buffer.concat(parts[3]);
  const strings = Buffer.concat(parts[5]).toString('utf8').split('\0');
  let f = 0, s = 0, b = 0;
  const cell = {
    1: () => 'null',
    2: () => String(integers.varint()),
    3: () => float(floats.readDoubleLE(8 * f++)),
    4: () => JSON.stringify(strings[s++]),
    5: () => JSON.stringify({blob: parts[4][b++].toString('base64')}),
  };
  const cells = Array.from(Buffer.concat(parts[1]), (kind) => cell[kind]());
  const rows = [];
  for (let at = 0; at < cells.length; at += width) rows.push(`[${cells.slice(at, at + width).join()}]`);
  return rows.join();
}

function float(value) {
  const digits = String(value);
  return Number.isInteger(value) && !digits.includes('e') ? digits + '.0' : digits;
}

function tell(line) {
  for (let rest = Buffer.from(line + '\n'); rest.length;) rest = rest.subarray(fs.writeSync(1, rest));
}

function* answer(send, request) {
  if (request.load !== undefined) {
    load(send, request.load);
    const {batches} = query(send, PROBLEMS);
    const counted = batches.flatMap((batch) => JSON.parse(`[${rowsOf(batch, 2)}]`));
    yield JSON.stringify({problems: Object.fromEntries(counted)});
  } else {
    const {columns, batches} = query(send, request.query);
    yield JSON.stringify({columns});
    for (const batch of batches) yield `{"rows":[${rowsOf(batch, columns.length)}]}`;
  }
  yield '{"end":true}';
}

async function main() {
  const send = await start();
  for await (const line of readline.createInterface({input: process.stdin})) {
    try {
      for (const told of answer(send, JSON.parse(line))) tell(told);
    } catch (error) {
      tell(JSON.stringify({error: String(error.message ?? error)}));
    }
  }
  process.exit(0);
}

main();
