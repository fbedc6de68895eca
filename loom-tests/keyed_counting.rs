//! Models the table of keys in use: a key is forgotten while a request for it is made.

use std::sync::Arc;

use loom::thread;

use super::support::model;
use crate::keyed::KeyedCountingLimit;
use crate::sync::lock;

type Keys = KeyedCountingLimit<u8>;

/// One permit for each key.
fn keys() -> Keys {
    KeyedCountingLimit::of_one_shard(1, 2)
}

/// The last permit of a key is given back while requests for the key are made. At most one permit
/// is in use, and the key is forgotten at the end.
fn giving_back_against_takes(give_back: fn(Keys)) {
    model(move || {
        let keys = keys();
        let other = {
            let keys = keys.clone();
            thread::spawn(move || give_back(keys))
        };
        let first = keys.try_acquire(&1);
        let second = keys.try_acquire(&1);
        assert!(first.is_err() || second.is_err(), "one permit");
        other.join().expect("no panic");
        drop((first, second));
        assert!(lock(&keys.table().shards[0]).keys.is_empty(), "no key stays");
    });
}

#[test]
fn a_key_is_not_forgotten_under_a_permit() {
    giving_back_against_takes(|keys| drop(keys.try_acquire(&1)));
}

/// The broken twin: checks in one section, and forgets in another.
#[test]
#[should_panic = "one permit"]
fn broken_a_key_is_not_forgotten_under_a_permit() {
    giving_back_against_takes(|keys| {
        let table = keys.table().clone();
        drop(keys.limiter(&1));
        let is_unused = |limit: &crate::CountingLimit| Arc::strong_count(&limit.pool) == 1;
        let slot = lock(&table.shards[0]).keys.slot_of(table.hash_of(&1), is_unused);
        if let Some(slot) = slot {
            let _removed = lock(&table.shards[0]).keys.remove_at(slot);
        }
    });
}

/// The last permit of a key is given back while another thread reads the status of the key. The key
/// is forgotten.
fn giving_back_against_a_read(look: fn(&Keys)) {
    model(move || {
        let keys = keys();
        let held = keys.try_acquire(&1).expect("the only one");
        let other = thread::spawn(move || drop(held));
        look(&keys);
        other.join().expect("no panic");
        assert!(lock(&keys.table().shards[0]).keys.is_empty(), "no key stays");
    });
}

#[test]
fn a_key_is_forgotten_while_its_status_is_read() {
    giving_back_against_a_read(|keys| assert_eq!(keys.status(&1).limit, 1));
}

/// The broken twin: reads through a reference to the limit, without the lock.
#[test]
#[should_panic = "no key stays"]
fn broken_a_key_is_forgotten_while_its_status_is_read() {
    giving_back_against_a_read(|keys| {
        let limit = keys.inspect_known(&1, crate::CountingLimit::clone);
        assert!(limit.is_none_or(|limit| limit.status().limit == 1));
    });
}

/// A new key is requested while the limit is closed: it is not added, or its limit is closed, too.
fn closing_against_a_new_key(close: fn(&Keys)) {
    model(move || {
        let keys = keys();
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.limiter(&1))
        };
        close(&keys);
        let limit = other.join().expect("no panic");
        assert!(limit.is_err() || limit.is_ok_and(|limit| limit.is_closed()), "an open key stays");
    });
}

#[test]
fn no_key_stays_open() {
    closing_against_a_new_key(|keys| assert!(keys.close()));
}

/// The broken twin: raises the flag after it has visited the keys.
#[test]
#[should_panic = "an open key stays"]
fn broken_no_key_stays_open() {
    closing_against_a_new_key(|keys| {
        let table = keys.table();
        let limits: Vec<_> = lock(&table.shards[0]).keys.iter().map(|(_, limit)| limit.clone()).collect();
        for limit in limits {
            limit.close();
        }
        table.raise_closed();
    });
}
