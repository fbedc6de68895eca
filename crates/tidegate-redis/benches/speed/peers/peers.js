// Decisions a second of other limiters over a server at the socket `SOCKET`. Each line has a name,
// the number of tasks, the decisions a second, the median of a decision and the server's processor
// time for it, both in microseconds.

const Redis = require("ioredis");
const { RateLimiterRedis } = require("rate-limiter-flexible");
const { RedisStore } = require("rate-limit-redis");

const ROUND = 300;

async function cpu(client) {
  const info = await client.info("cpu");
  const seconds = (name) => Number(info.match(new RegExp(`${name}:([0-9.]+)`))[1]);
  return (seconds("used_cpu_sys") + seconds("used_cpu_user")) * 1e6;
}

async function round(client, decide, tasks) {
  const times = [];
  const before = await cpu(client);
  const begun = performance.now();
  const task = async () => {
    let last = performance.now();
    while (last - begun < ROUND) {
      await decide();
      const now = performance.now();
      times.push(now - last);
      last = now;
    }
  };
  await Promise.all(Array.from({ length: tasks }, task));
  const took = performance.now() - begun;
  const spent = (await cpu(client)) - before;
  times.sort((a, b) => a - b);
  const median = times[times.length >> 1] * 1e3;
  return [(times.length / took) * 1e3, median, spent / times.length];
}

async function main() {
  const client = new Redis({ path: process.env.SOCKET });
  const flexible = new RateLimiterRedis({ storeClient: client, points: 1e9, duration: 3600 });
  const express = new RedisStore({ sendCommand: (...args) => client.call(...args) });
  express.init({ windowMs: 3600e3 });
  const peers = {
    "rate-limiter-flexible": () => flexible.consume("key", 1),
    "rate-limit-redis": () => express.increment("key"),
  };
  for (const [name, decide] of Object.entries(peers)) {
    for (const tasks of [1, 100]) {
      let best = [0];
      for (let i = 0; i < 7; i++) {
        const found = await round(client, decide, tasks);
        if (found[0] > best[0]) best = found;
      }
      console.log(name, tasks, ...best.map((n) => n.toFixed(3)));
    }
  }
  client.disconnect();
}

main();
