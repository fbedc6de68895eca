//! Values that another program wrote under a key: an error, and not a state by which to grant.

use redis::{RedisResult, Value};

use crate::script::Script;
use crate::script_tests::{Limit, START, Store, TRY, command};

const LIMITS: [&str; 6] = [
    "token_bucket 5/s burst 10",
    "leaky_bucket 5/s capacity 10",
    "fixed_window 10/min",
    "sliding_window 10/min cells 6",
    "sliding_estimate 10/min",
    "sliding_log 10/min",
];

/// Each byte with which a text may begin, followed by as many others as the longest number has.
fn texts() -> Vec<Vec<u8>> {
    let filled = |first: u8, rest: u8| {
        let mut text = vec![rest; 5_000];
        text[0] = first;
        text
    };
    let printable = b' '..=b'~';
    let mut texts: Vec<_> = printable.flat_map(|first| [filled(first, b'9'), filled(first, b' ')]).collect();
    texts.extend([vec![b'9'; 5_000], vec![0xff; 5_000], vec![0xc3; 5_000], vec![0x80; 5_000]]);
    texts.extend([&b"abc"[..], b"7", b"-1", b"nan", b"1e308"].map(<[u8]>::to_vec));
    texts
}

fn ask(store: &mut Store, limit: &Limit) -> RedisResult<Value> {
    let script = Script::shared([limit.terms.kind()]);
    let call = command(&script, TRY, Some(START), &[limit.part(1, &[])]);
    script.by_text(&call).query(&mut store.connection)
}

#[test]
fn no_text_under_a_key_is_a_state() {
    let Some(mut store) = Store::new() else { return };
    for limit in LIMITS.map(Limit::new) {
        for text in texts() {
            redis::cmd("SET").arg(&limit.key).arg(&text).exec(&mut store.connection).expect("a write");
            let reply = ask(&mut store, &limit);
            let start = String::from_utf8_lossy(&text[..text.len().min(8)]).into_owned();
            assert!(reply.is_err(), "{}: {start}: {reply:?}", limit.key);
            let kept: Vec<u8> =
                redis::cmd("GET").arg(&limit.key).query(&mut store.connection).expect("a value");
            assert!(kept == text, "{}: {start} was written over", limit.key);
        }
    }
}
