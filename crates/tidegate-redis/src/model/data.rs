//! The state of a modelled server, and the interpreter of its scripts.

use std::collections::{BTreeMap, HashMap, VecDeque};

use mlua::{Function, Lua, MultiValue, Variadic};
use redis::Value;

/// The keys of a server. Times are Unix time in microseconds.
#[derive(Default)]
pub(super) struct Data {
    now: u64,
    keys: HashMap<Vec<u8>, Entry>,
    /// The entry of each key before a write, for a replica that lags behind.
    undo: VecDeque<(u64, Vec<u8>, Option<Entry>)>,
    lag: u64,
}

#[derive(Clone, Default)]
struct Entry {
    value: Vec<u8>,
    /// The fields of a hash.
    fields: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The last millisecond in which the entry exists.
    expires: Option<u64>,
}

impl Entry {
    fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|last| now / 1000 > last)
    }
}

impl Data {
    fn get(&mut self, key: &[u8]) -> Option<&Entry> {
        let now = self.now;
        if self.keys.get(key).is_some_and(|entry| entry.is_over(now)) {
            self.keys.remove(key);
        }
        self.keys.get(key)
    }

    fn put(&mut self, key: &[u8], entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => self.keys.insert(key.to_vec(), entry),
            None => self.keys.remove(key),
        };
        if self.lag > 0 {
            self.undo.push_back((self.now, key.to_vec(), before));
            while self.undo.front().is_some_and(|(at, ..)| at + self.lag < self.now) {
                self.undo.pop_front();
            }
        }
    }

    /// Restores the state that a replica has.
    fn become_replica(&mut self, now: u64) {
        while let Some((at, key, before)) = self.undo.pop_back() {
            if at + self.lag < now {
                break;
            }
            match before {
                Some(entry) => self.keys.insert(key, entry),
                None => self.keys.remove(&key),
            };
        }
    }
}

/// A server: its data, and the scripts that it knows.
pub(super) struct Server {
    lua: Lua,
    scripts: HashMap<String, Function>,
}

impl Server {
    /// A server whose replica has each write `lag` microseconds later.
    pub(super) fn new(lag: u64) -> mlua::Result<Server> {
        let lua = Lua::new();
        lua.set_app_data(Data { lag, ..Data::default() });
        let (redis, structs) = (lua.create_table()?, lua.create_table()?);
        redis.set("call", lua.create_function(call)?)?;
        structs.set("pack", lua.create_function(pack)?)?;
        structs.set("unpack", lua.create_function(unpack)?)?;
        lua.globals().set("redis", redis)?;
        lua.globals().set("struct", structs)?;
        Ok(Server { lua, scripts: HashMap::new() })
    }

    /// Removes all scripts, as a restarted server does.
    pub(super) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    pub(super) fn forget_keys(&mut self) {
        self.data(|data| *data = Data { lag: data.lag, ..Data::default() });
    }

    pub(super) fn become_replica(&mut self, now: u64) {
        self.data(|data| data.become_replica(now));
    }

    /// The number of keys that have not expired.
    pub(super) fn size(&mut self, now: u64) -> usize {
        self.data(|data| {
            data.keys.retain(|_, entry| !entry.is_over(now));
            data.keys.len()
        })
    }

    fn data<T>(&mut self, work: impl FnOnce(&mut Data) -> T) -> T {
        work(&mut self.lua.app_data_mut::<Data>().expect("it is set"))
    }

    /// Carries out a command at a time.
    pub(super) fn carry_out(&mut self, now: u64, args: &[Vec<u8>]) -> Value {
        self.data(|data| data.now = now);
        let name = args.first().map(|name| name.to_ascii_uppercase());
        match (name.as_deref(), args) {
            (Some(b"EVALSHA"), [_, hash, rest @ ..]) => {
                let hash = String::from_utf8_lossy(hash).into_owned();
                match self.scripts.get(&hash).cloned() {
                    Some(script) => self.run(&script, rest),
                    None => error("NOSCRIPT No matching script."),
                }
            }
            (Some(b"EVAL"), [_, text, rest @ ..]) => {
                let hash = sha1_smol::Sha1::from(text).digest().to_string();
                let script = match self.scripts.get(&hash) {
                    Some(script) => Ok(script.clone()),
                    None => self.lua.load(text.as_slice()).into_function(),
                };
                match script {
                    Ok(script) => {
                        self.scripts.insert(hash, script.clone());
                        self.run(&script, rest)
                    }
                    Err(wrong) => error(&format!("ERR {wrong}")),
                }
            }
            _ => error("ERR unknown command"),
        }
    }

    fn run(&mut self, script: &Function, rest: &[Vec<u8>]) -> Value {
        let answer = || -> mlua::Result<Value> {
            let keys = rest.first().and_then(|n| std::str::from_utf8(n).ok()?.parse::<usize>().ok());
            let (keys, args) = rest[1..].split_at(keys.unwrap_or(0));
            let strings = |strings: &[Vec<u8>]| {
                let strings = strings.iter().map(|string| self.lua.create_string(string));
                self.lua.create_sequence_from(strings.collect::<mlua::Result<Vec<_>>>()?)
            };
            let globals = self.lua.globals();
            globals.raw_set("KEYS", strings(keys)?)?;
            globals.raw_set("ARGV", strings(args)?)?;
            reply(script.call(())?)
        };
        answer().unwrap_or_else(|wrong| error(&format!("ERR {wrong}")))
    }
}

/// An error reply of a server.
pub(super) fn error(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).unwrap_or(Value::Nil)
}

/// Converts a Lua value to a reply of a server.
fn reply(value: mlua::Value) -> mlua::Result<Value> {
    // A server truncates numbers to integers, too.
    #[allow(clippy::cast_possible_truncation)]
    Ok(match value {
        mlua::Value::Integer(number) => Value::Int(number),
        mlua::Value::Number(number) => Value::Int(number as i64),
        mlua::Value::Boolean(true) => Value::Int(1),
        mlua::Value::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        mlua::Value::Table(table) => {
            let mut values = Vec::with_capacity(table.raw_len());
            for value in table.sequence_values() {
                values.push(reply(value?)?);
            }
            Value::Array(values)
        }
        _ => Value::Nil,
    })
}

/// `redis.call`, for the commands of the scripts.
fn call(lua: &Lua, args: Variadic<mlua::LuaString>) -> mlua::Result<mlua::Value> {
    let mut data = lua.app_data_mut::<Data>().expect("it is set");
    let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
    let args: Vec<&[u8]> = args.iter().map(|arg| &**arg).collect();
    let number = |text: &[u8]| -> mlua::Result<u64> {
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| mlua::Error::runtime("value is not an integer or out of range"))
    };
    let count = |n: usize| i32::try_from(n).map_or(mlua::Value::Nil, |n| mlua::Value::Number(n.into()));
    match *args {
        [b"TIME"] => {
            let now = data.now;
            drop(data);
            let parts = [now / 1_000_000, now % 1_000_000].map(|part| lua.create_string(part.to_string()));
            let [seconds, micros] = parts;
            Ok(mlua::Value::Table(lua.create_sequence_from([seconds?, micros?])?))
        }
        [b"GET", key] => match data.get(key) {
            Some(entry) => Ok(mlua::Value::String(lua.create_string(&entry.value)?)),
            None => Ok(mlua::Value::Boolean(false)),
        },
        [b"SET", key, value, unit @ (b"PX" | b"PXAT"), expires] => {
            let from = if unit == b"PX" { data.now / 1000 } else { 0 };
            let expires = from + number(expires)?;
            let entry = Entry { value: value.to_vec(), expires: Some(expires), ..Entry::default() };
            data.put(key, Some(entry));
            Ok(mlua::Value::Boolean(true))
        }
        [b"HMGET", key, ref fields @ ..] => {
            let entry = data.get(key).cloned().unwrap_or_default();
            let value = |field: &&[u8]| match entry.fields.get(*field) {
                Some(value) => lua.create_string(value).map(mlua::Value::String),
                None => Ok(mlua::Value::Boolean(false)),
            };
            let values = fields.iter().map(value).collect::<mlua::Result<Vec<_>>>()?;
            Ok(mlua::Value::Table(lua.create_sequence_from(values)?))
        }
        [b"HGETALL", key] => {
            let entry = data.get(key).cloned().unwrap_or_default();
            let both = entry.fields.iter().flat_map(|(field, value)| [field, value]);
            let both = both.map(|text| lua.create_string(text)).collect::<mlua::Result<Vec<_>>>()?;
            Ok(mlua::Value::Table(lua.create_sequence_from(both)?))
        }
        [b"HSET", key, ref pairs @ ..] => {
            let mut entry = data.get(key).cloned().unwrap_or_default();
            entry.fields.extend(pairs.chunks_exact(2).map(|pair| (pair[0].to_vec(), pair[1].to_vec())));
            data.put(key, Some(entry));
            Ok(count(pairs.len() / 2))
        }
        [b"HDEL", key, ref fields @ ..] => {
            let mut entry = data.get(key).cloned().unwrap_or_default();
            entry.fields.retain(|field, _| !fields.contains(&field.as_slice()));
            let is_empty = entry.fields.is_empty();
            data.put(key, (!is_empty).then_some(entry));
            Ok(count(fields.len()))
        }
        [b"PEXPIRE", key, span] => {
            let expires = data.now / 1000 + number(span)?;
            if let Some(entry) = data.get(key).cloned() {
                data.put(key, Some(Entry { expires: Some(expires), ..entry }));
            }
            Ok(count(1))
        }
        [b"PTTL", key] => {
            let expires = data.get(key).map(|entry| entry.expires);
            let left = expires.map(|at| at.map_or(-1, |at| at.saturating_sub(data.now / 1000).cast_signed()));
            Ok(mlua::Value::Number(left.unwrap_or(-2) as f64))
        }
        [b"DEL", ref keys @ ..] => {
            let found: Vec<_> = keys.iter().filter(|key| data.get(key).is_some()).copied().collect();
            for key in &found {
                data.put(key, None);
            }
            Ok(count(found.len()))
        }
        _ => Err(mlua::Error::runtime("the model does not know this command")),
    }
}

/// One value of a format.
enum Item {
    Double,
    Unsigned(usize),
}

/// Reads a big-endian format of `d` and `I` with a size.
fn items(format: &[u8]) -> mlua::Result<Vec<Item>> {
    let wrong = || mlua::Error::runtime("the model does not know this format");
    let (b'>', mut rest) = format.split_first().map(|(first, rest)| (*first, rest)).ok_or_else(wrong)? else {
        return Err(wrong());
    };
    let mut items = Vec::with_capacity(rest.len());
    loop {
        rest = match rest {
            [] => return Ok(items),
            [b'd', rest @ ..] => {
                items.push(Item::Double);
                rest
            }
            [b'I', size @ b'1'..=b'8', rest @ ..] => {
                items.push(Item::Unsigned(usize::from(size - b'0')));
                rest
            }
            _ => return Err(wrong()),
        };
    }
}

/// `struct.pack`.
// A number is truncated to its field, as the server does.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn pack(lua: &Lua, (format, numbers): (mlua::LuaString, Variadic<f64>)) -> mlua::Result<mlua::LuaString> {
    let items = items(&format.as_bytes())?;
    if items.len() > numbers.len() {
        return Err(mlua::Error::runtime("too few values"));
    }
    let mut bytes = Vec::with_capacity(8 * items.len());
    for (item, number) in items.iter().zip(numbers.iter()) {
        match item {
            Item::Double => bytes.extend_from_slice(&number.to_be_bytes()),
            Item::Unsigned(size) => {
                bytes.extend_from_slice(&(*number as i64 as u64).to_be_bytes()[8 - size..]);
            }
        }
    }
    lua.create_string(bytes)
}

/// `struct.unpack`: the values, and the position behind them.
fn unpack(
    _: &Lua,
    (format, bytes, from): (mlua::LuaString, mlua::LuaString, Option<usize>),
) -> mlua::Result<MultiValue> {
    let (items, bytes) = (items(&format.as_bytes())?, bytes.as_bytes());
    let mut at = from.unwrap_or(1).saturating_sub(1);
    let mut values = MultiValue::with_capacity(items.len() + 1);
    for item in items {
        let size = match item {
            Item::Double => 8,
            Item::Unsigned(size) => size,
        };
        let field = bytes.get(at..at + size).ok_or_else(|| mlua::Error::runtime("data string too short"))?;
        let mut wide = [0; 8];
        wide[8 - size..].copy_from_slice(field);
        values.push_back(mlua::Value::Number(match item {
            Item::Double => f64::from_be_bytes(wide),
            Item::Unsigned(_) => u64::from_be_bytes(wide) as f64,
        }));
        at += size;
    }
    values.push_back(mlua::Value::Number((at + 1) as f64));
    Ok(values)
}

#[cfg(test)]
mod tests {
    use redis::Arg;

    use super::Server;
    use crate::script::Script;
    use crate::script_tests::{Limit, Operation, START, command};

    /// A key that is kept for refused requests, or because its limit does not start full, was kept
    /// for as long as the clock was set back.
    #[test]
    fn a_clock_that_is_set_back_keeps_no_key() {
        let mut server = Server::new(0).expect("an interpreter");
        let (minute, hour) = (60_000_000, 3_600_000_000);
        for (line, kept) in [
            ("leaky_bucket 10/s capacity 20", 0),
            ("smooth_bursty 10/s", 24 * hour),
            ("token_bucket 10/min burst 20", 0),
        ] {
            let limit = Limit::new(line);
            let script = Script::shared([limit.terms.kind()]);
            // The script takes the time of the server.
            let cmd = script.by_text(&command(&script, Operation::Debit, None, &[limit.part(1, &[])]));
            let args = cmd.args_iter().filter_map(|arg| match arg {
                Arg::Simple(arg) => Some(arg.to_vec()),
                _ => None,
            });
            let args: Vec<_> = args.collect();
            for second in [0, 1, 2] {
                server.carry_out(START + second * 1_000_000, &args);
            }
            for second in [3, 4, 5] {
                server.carry_out(START - hour + second * 1_000_000, &args);
            }
            assert_eq!(server.size(START - hour + 6_000_000), 1, "{line}");
            assert_eq!(server.size(START - hour + kept + minute), 0, "{line}");
        }
    }
}
