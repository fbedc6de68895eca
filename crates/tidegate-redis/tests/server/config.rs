//! Limiters by configuration: in one process, or over a store.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::support::Server;
use tidegate::{AnyKeyed, AnyLimiter, Refusal, Replaceable, Statistics};
use tidegate_redis::{LimiterConfig, OpenError, Store, WhileAway};

fn config(line: &str) -> LimiterConfig {
    line.parse().unwrap()
}

fn error(line: &str) -> String {
    line.parse::<LimiterConfig>().and_then(|config| config.build()).unwrap_err().to_string()
}

#[test]
fn one_changed_line_shares_a_limit() {
    let Some(server) = Server::start() else { return };
    let line = "fixed_window 5/10000d";
    let take_all = |limiter: &AnyLimiter| (0..10).filter(|_| limiter.try_acquire().is_ok()).count();
    let alone: Vec<AnyLimiter> = (0..2).map(|_| config(line).build().unwrap()).collect();
    assert_eq!([take_all(&alone[0]), take_all(&alone[1])], [5, 5]);
    let line = format!("{line} store {} timeout 60s", server.url());
    let other = config(&format!("{line} tag other prefix app leased")).build().unwrap();
    assert_eq!(take_all(&other), 5);
    let line = format!("{line} tag all");
    let shared: Vec<AnyLimiter> = (0..2).map(|_| config(&line).build().unwrap()).collect();
    assert_eq!([take_all(&shared[0]), take_all(&shared[1])], [5, 0]);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*{*").query(&mut server.connect()).unwrap();
    let mut keys: Vec<_> = keys.iter().map(|key| key.rsplit_once(':').unwrap().0).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["app:1:{other}:limit", "tidegate:1:{all}:limit"]);
}

/// A layer keeps its handle, while the program reads its configuration again.
#[test]
fn a_configuration_that_is_read_again_keeps_the_permits_in_the_store() {
    let Some(server) = Server::start() else { return };
    let build = |line: &str| {
        let line = format!("{line} store {} tag calls timeout 60s", server.url());
        config(&line).build().unwrap()
    };
    let limiter = Replaceable::new(build("token_bucket 1/d burst 5"));
    let in_layer = AnyLimiter::from(limiter.clone());
    let for_tasks = in_layer.non_blocking();
    assert!(in_layer.try_acquire_many(4).is_ok());
    limiter.replace(build("token_bucket 1/d burst 3"));
    assert_eq!(in_layer.status().members[0].1.available, 1);
    limiter.replace(config("token_bucket 1/d burst 7").build().unwrap());
    assert_eq!((in_layer.may_block(), in_layer.status().members[0].1.available), (false, 7));
    limiter.replace(build("token_bucket 1/d burst 9"));
    assert_eq!(in_layer.status().members[0].1.available, 1);
    assert!(for_tasks.try_acquire().unwrap_err().is_degraded(), "it would block its thread");
    assert!(in_layer.try_acquire_many(2).is_err() && in_layer.try_acquire().is_ok());
}

#[test]
fn two_policies_are_two_limits_that_are_decided_together() {
    let Some(server) = Server::start() else { return };
    let line = "fixed_window 5/10000d and token_bucket 1/h burst 3";
    for limiter in [
        config(line).build().unwrap(),
        config(&format!("{line} store {} tag both timeout 1min", server.url())).build().unwrap(),
    ] {
        for _ in 0..3 {
            assert!(limiter.try_acquire().is_ok());
        }
        assert_eq!(limiter.try_acquire().unwrap_err().member(), Some("second"));
        assert_eq!(limiter.status().member("first").unwrap().available, 2);
    }
}

#[test]
fn permits_in_use_are_limited_by_one_line() {
    let Some(server) = Server::start() else { return };
    let take = |limiter: &AnyLimiter| limiter.blocking_acquire_many(2);
    let alone = config("in_use 2").build().unwrap();
    let shared = format!("in_use 2 time_to_live 3600s store {} tag jobs timeout 60s", server.url());
    let shared = config(&shared);
    let (one, other) = (shared.build().unwrap(), shared.build().unwrap());
    for (one, other) in [(alone.clone(), alone), (one, other)] {
        let both = take(&one).unwrap();
        assert_eq!(other.try_acquire().unwrap_err().refusal(), Some(Refusal::InUse { limit: 2 }));
        drop(both);
        assert_eq!(take(&other).unwrap().permits(), 2);
    }
    // A key without permits in use would be gone.
    let third = shared.build().unwrap();
    let _held = take(&third).unwrap();
    let left: i64 = redis::cmd("TTL").arg("tidegate:1:{jobs}:in-use").query(&mut server.connect()).unwrap();
    assert!((61..=3600).contains(&left), "the time to live is {left} s");
    let keys: AnyKeyed<String> = config("in_use 2").build_keyed(10).unwrap();
    let _both = take(&keys.limiter("alice").unwrap()).unwrap();
    assert!(keys.limiter("alice").unwrap().try_acquire().is_err());
    assert!(keys.limiter("bob").unwrap().try_acquire().is_ok());
    let keyed = shared.build_keyed(10).unwrap_err().to_string();
    assert_eq!(keyed, "in_use must be left out of limits of each key over a store");
    let store = shared.open().unwrap().unwrap();
    let builder = shared.limiter_builder(&store).unwrap_err().to_string();
    assert_eq!(builder, "in_use must be made by build, build_over or Store::counting");
}

/// Configurations without a tag once had one tag, and thus one key for limits of equal kind.
#[test]
fn no_two_limits_of_a_store_share_a_tag_by_default() {
    let Some(server) = Server::start() else { return };
    let store = Store::builder(server.url()).timeout(Duration::from_secs(60)).open().unwrap();
    let over = |line: &str| config(line).build_over(&store).map_err(|error| error.to_string());
    assert!(
        over("fixed_window 5/10000d").unwrap_err().starts_with("tag must be set for a limit over a store")
    );
    for tag in ["downloads", "uploads"] {
        let limiter = over(&format!("fixed_window 5/10000d tag {tag}")).unwrap();
        assert!(limiter.try_acquire_many(5).is_ok());
        assert!(limiter.try_acquire().is_err());
    }
    // A process-local limit has no key.
    assert!(config("fixed_window 5/10000d tag uploads").build().unwrap().try_acquire().is_ok());
}

/// Equal keys of two configurations are two keys of the store.
#[test]
fn one_changed_line_shares_the_limits_of_each_key() {
    let Some(server) = Server::start() else { return };
    let store = format!("store {} timeout 60s tag", server.url());
    let take_all = |users: &AnyKeyed<String>, key: &str| {
        let limiter = users.limiter(key).unwrap();
        (0..10).filter(|_| limiter.try_acquire().is_ok()).count()
    };
    for (line, both) in [
        ("fixed_window 5/10000d".to_owned(), [5, 5]),
        (format!("fixed_window 5/10000d {store} users"), [5, 0]),
        (format!("fixed_window 5/10000d and sliding_log 3/d {store} tenants"), [3, 0]),
        ("fixed_window 5/10000d and sliding_log 3/d tag users".to_owned(), [3, 3]),
    ] {
        let users: Vec<_> = (0..2).map(|_| config(&line).build_keyed(2).unwrap()).collect();
        for key in ["alice", "bob"] {
            assert_eq!([take_all(&users[0], key), take_all(&users[1], key)], both, "{line}");
        }
    }
    let alone = config("fixed_window 5/10000d").build_keyed(2).unwrap();
    assert_eq!(["a", "b", "c"].map(|key| take_all(&alone, key)), [5, 5, 0]);
    // Without room for a key each request would be refused.
    for line in ["fixed_window 5/10000d", "fixed_window 5/10000d and sliding_log 3/d", "in_use 5"] {
        let error = config(line).build_keyed(0).unwrap_err().to_string();
        assert_eq!(error, "max_keys must be above zero, and more than the keys that are in use at a time");
    }
    let store = Store::builder(server.url()).timeout(Duration::from_secs(60)).open().unwrap();
    // The limits of a key are those of the limiter with this tag.
    let alice = config("fixed_window 5/10000d tag users:alice").build_over(&store).unwrap();
    assert!(alice.try_acquire().is_err());
    assert!(config("fixed_window 5/10000d").build_keyed_over(&store).is_err());
}

#[test]
fn a_program_completes_the_store_of_a_configuration() {
    let Some(server) = Server::start() else { return };
    let line =
        format!("fixed_window 5/10000d store {} tag a prefix app timeout 60s while_away open", server.url());
    let statistics = Arc::new(Statistics::new());
    let builder = config(&line).store_builder().unwrap();
    let shown = format!("{builder:?}");
    assert!(["app", "60s", "Open"].iter().all(|setting| shown.contains(setting)), "{shown}");
    let store = builder.observed_by(statistics.clone()).open().unwrap();
    let limiter = config(&line).limiter_builder(&store).unwrap().build().unwrap();
    let built = config(&line).build().unwrap();
    assert!(built.try_acquire_many(5).is_ok());
    assert!(AnyLimiter::from(limiter).try_acquire().is_err());
    assert_eq!(statistics.snapshot().limited, 1);
    assert!(config("fixed_window 5/10000d").store_builder().is_none());
}

#[test]
fn an_observer_is_notified_of_limits_in_one_process_and_over_a_store() {
    let Some(server) = Server::start() else { return };
    let store = format!("store {} timeout 60s tag", server.url());
    for line in ["fixed_window 5/d", "fixed_window 5/d and fixed_window 9/d"] {
        for line in [line.to_owned(), format!("{line} {store} a{}", line.len())] {
            let statistics = Arc::new(Statistics::new());
            let config = config(&line).observed_by(statistics.clone());
            let limiter = config.build().unwrap();
            assert!(limiter.try_acquire_many(5).is_ok() && limiter.try_acquire().is_err());
            let alice = config.build_keyed(2).unwrap().limiter("alice").unwrap();
            assert!(alice.try_acquire().is_ok());
            let counts = statistics.snapshot();
            assert_eq!((counts.granted, counts.limited), (2, 1), "{line}");
            assert_eq!(counts.store.answered > 0, config.store_builder().is_some(), "{line}");
        }
    }
    // One observer and one store, another observer and another store.
    let statistics = Arc::new(Statistics::new());
    let observed = |tag| config(&format!("fixed_window 5/d {store} {tag}")).observed_by(statistics.clone());
    let _open = [observed("b").build().unwrap(), observed("c").build().unwrap()];
    let other = config(&format!("fixed_window 5/d {store} b"));
    assert_eq!(other, observed("b"));
    assert!(other.build().unwrap().try_acquire().is_ok());
    assert_eq!(statistics.snapshot().granted, 0);
}

#[test]
fn a_limiter_without_a_limit_opens_no_store() {
    let limiter = config("unlimited store redis://127.0.0.1:1 tag all").build().unwrap();
    assert!(limiter.try_acquire_many(u32::MAX).is_ok());
}

#[test]
fn a_line_is_written_as_it_is_read() {
    for line in [
        "token_bucket 100/s burst 20",
        "fixed_window 5/d and sliding_log 3/s",
        "fixed_window 5/d store redis://127.0.0.1 prefix app tag all timeout 20ms while_away share_of 8 leased",
        "fixed_window 5/d store redis://h:1/2 tag a timeout 1s while_away share",
        "fixed_window 5/d store redis+unix:///tmp/s tag a timeout 90s while_away closed",
        // Without its database it would be another limit.
        "fixed_window 5/d store redis+unix:///tmp/s?db=3 tag a",
        "fixed_window 5/d store redis+unix:///tmp/a@b?db=3 tag a",
        "fixed_window 5/d store redis://h tag a while_away wait",
        "fixed_window 5/d tag a",
        "in_use 20",
        "in_use 1 store redis://h tag a timeout 1s while_away share",
        "in_use 1 time_to_live 90s store redis://h tag a",
    ] {
        assert_eq!(config(line).to_string(), line);
        assert_eq!(config(&config(line).to_string()), config(line));
    }
}

#[test]
fn errors_say_what_to_write() {
    let line = "fixed_window 5/s store redis://h";
    let tag = "tag must be set for a limit over a store, to the name by which all processes share this limit, such as uploads";
    assert_eq!(error(line), tag);
    let away = "must be closed, wait, open, share, or share_of with a number from 1, such as share_of 8";
    for (tail, message) in [
        (
            " timeout 20",
            r#"timeout is "20", and must be a whole number above zero and a unit, such as 50ms or 1s"#,
        ),
        (" tag a leased true", "leased must be named without a value, or left out"),
        (" tag a leased false", "leased must be named without a value, or left out"),
        (
            " timeout 0ms",
            r#"timeout is "0ms", and must be a whole number above zero and a unit, such as 50ms or 1s"#,
        ),
        (
            " timeout 1.5s",
            r#"timeout is "1.5s", and must be a whole number above zero and a unit, such as 50ms or 1s"#,
        ),
        (" while_away never", &format!(r#"while_away is "never", and {away}"#)),
        (" while_away share_of 0", &format!(r#"while_away is "share_of 0", and {away}"#)),
        (" while_away redis://:hunter2@h", &format!("while_away {away}")),
        (" prefix a prefix b", "prefix must be set once"),
        (" tag", "tag must be a text"),
        (" tag a prefix a:b", r#""a:b": a prefix has 1 to 200 bytes, and no brace, colon, space or control"#),
    ] {
        assert_eq!(error(&format!("{line}{tail}")), message);
    }
    assert_eq!(
        error(&format!("{line} prefix a burst 5")),
        "burst: there is no such field; besides the limits there are in_use, time_to_live, store, prefix, tag, \
         timeout, while_away and leased"
    );
    assert!(
        error(&format!("{line} tag a{{b"))
            .starts_with(r#""a{b" cannot be part of a key: a tag has 1 to 500"#)
    );
    for store in ["store", "store tag a"] {
        let address = "store must be an address, such as redis://127.0.0.1";
        assert_eq!(error(&format!("fixed_window 5/s {store}")), address);
    }
    assert_eq!(error("fixed_window 5/s leased"), "leased must be left out where no store is set");
    for field in ["tag", "prefix"] {
        for address in [
            "redis://:hunter2@h",
            "redis+unix:///s?pass=hunter2",
            "redis+sentinel://h/name?sentinel_password=hunter2",
        ] {
            let error = error(&format!("fixed_window 5/s {field} {address}"));
            assert_eq!(error, format!("{field} must be a name, and not an address with a password"));
        }
    }
    assert!(!error("fixed_window 5/s redis+unix:?pass=hunter2").contains("hunter2"));
    let socket = config("fixed_window 5/s store redis+unix:///s?user=u&db=3&pass=hunter2 tag a");
    assert_eq!(socket.to_string(), "fixed_window 5/s store redis+unix:///s?db=3 tag a");
    assert!(
        !error("in_use 5 store redis://h tag t time_to_live redis+unix:u:hunter2 x@h").contains("hunter2")
    );
    // A duration may be longer than the period of a rate.
    let years = config("in_use 5 store redis://h tag t time_to_live 36500d timeout 99999999999d");
    assert_eq!(years.to_string().parse(), Ok(years));
    // The words of a password with spaces.
    for address in [
        "redis+unix:///s?pass=correct hunter2",
        "redis+sentinel://h/name?sentinel_password=correct hunter2",
        "redis://:correct hunter2 battery@h",
        "redis://h:12 hunter2 34@h",
        "redis+unix:///s?pass=correct timeout hunter2",
        "redis://:correct tag hunter2@h",
        "redis://:correct prefix hunter2@h tag t",
    ] {
        for fields in ["", " tag t", " tag t leased"] {
            let line = format!("fixed_window 5/s store {address}{fields}");
            let error = line.parse::<LimiterConfig>().expect_err(&line);
            assert!(
                !error.to_string().contains("hunter2") && !format!("{error:?}").contains("hunter2"),
                "{error}"
            );
        }
    }
    let cut = error("fixed_window 5/s store redis://:correct hunter2 battery@h tag t");
    assert_eq!(cut, "store must be an address; a space in its password is written as %20");
    let other = error("fixed_window 5/s store redis://127.0.0.1:6379/0 tga t");
    assert!(other.starts_with("tga: there is no such field"), "{other}");
    assert!(!error("fixed_window 5/s tag a redis+unix:?pass=hunter2").contains("hunter2"));
    assert_eq!(config("fixed_window 5/d tag https://h/a").to_string(), "fixed_window 5/d tag https://h/a");
    assert_eq!(config("fixed_window 5/d tag ann@h").to_string(), "fixed_window 5/d tag ann@h");
    let shared = "fixed_window 5/s while_away share leased";
    assert_eq!(error(shared), "while_away must be left out where no store is set");
    assert_eq!(
        error("fixed_window 5/s brust 5"),
        "brust: fixed_window has only at_wall_clock and from_first_grant; besides the limits there are in_use, \
         time_to_live, store, prefix, tag, timeout, while_away and leased"
    );
    assert_eq!(error("fixed_window 5/100ns store redis://h tag a"), {
        let policy = "fixed_window 5/100ns";
        format!("{policy}: a period that is not a whole number of microseconds is not supported over a store")
    });
    let alone = "in_use must be the only limit, without a policy and without leased; a rate as well is a \
                 configuration of its own";
    for (line, message) in [
        ("in_use 2 fixed_window 5/s", "fixed_window: there is no such field; besides the limits there are"),
        ("fixed_window 5/s in_use 2", alone),
        ("in_use 2 store redis://h tag a leased", alone),
        ("in_use -1", r#"in_use is "-1", and must be a whole number from 1 to 4294967295"#),
        (
            "in_use 0",
            r#"in_use is "0", and must be a whole number from 1 to 4294967295; a limit that grants nothing is deny_all"#,
        ),
        ("in_use", "in_use must be a whole number from 1 to 4294967295"),
        ("in_use 2 store redis://h", tag),
        ("in_use 2 time_to_live 5s", "time_to_live must be left out where no store is set"),
        (
            "in_use 2 time_to_live 0s store redis://h tag a",
            r#"time_to_live is "0s", and must be a whole number and a unit, at least 1s, such as 10s"#,
        ),
        (
            "fixed_window 5/s store redis://h tag a time_to_live 5s",
            "time_to_live must be left out where in_use is not set",
        ),
        ("in_use 2 timeout 20ms", "timeout must be left out where no store is set"),
    ] {
        assert!(error(line).starts_with(message), "{}", error(line));
    }
    for line in ["store redis://h tag a fixed_window 5/s", "leased", "tag a", ""] {
        assert_eq!(error(line), "policy must be first in a line, such as token_bucket 100/s burst 20");
    }
    let three = "fixed_window 5/s and fixed_window 5/min and fixed_window 5/h";
    assert_eq!(error(three), "policy must be one, or two with `and` between them");
}

/// The store opened, and every call failed with "could not be connected to in time".
#[test]
fn a_store_without_time_for_a_call_is_not_opened() {
    let open = |timeout| Store::builder("redis://127.0.0.1:1").timeout(timeout).open();
    assert_eq!(open(Duration::ZERO).unwrap_err(), OpenError::Timeout);
    assert_eq!(OpenError::Timeout.to_string(), "the timeout of the store must be above zero, such as 50 ms");
    assert!(open(Duration::from_nanos(1)).is_ok() && open(Duration::MAX).is_ok());
}

/// Whatever is wrong with a line, no text of the crate contains its password.
#[test]
fn no_text_has_a_password() {
    let address = "redis://user:hunter2@[bad";
    for line in [
        format!("fixed_window 5/s store {address} tag a"),
        format!("fixed_window 5/s {address}"),
        format!("fixed_window {address}"),
        format!("{address} store"),
        format!("fixed_window 5/s prefix {address}"),
        format!("fixed_window 5/s store redis://h timeout {address}"),
        format!("fixed_window 5/s store redis://h while_away {address}"),
        format!("fixed_window 5/s store redis://h {address}"),
        format!("fixed_window 5/s burst 3 store {address}"),
        "fixed_window 5/s store redis+unix:///s?pass=hunter2 tag a".to_owned(),
        "fixed_window 5/s store redis://:p@hunter2@host/1 tag a".to_owned(),
        // Characters that must be escaped, and a missing host.
        "fixed_window 5/s store redis://:hunter2?3@host tag a".to_owned(),
        "fixed_window 5/s store redis://user:hunter2#3@host tag a".to_owned(),
        "fixed_window 5/s store rediss://user:hunter2/3?@host tag a".to_owned(),
        "fixed_window 5/s store redis://user:hunter2 tag a".to_owned(),
        "fixed_window 5/s store redis+sentinel://user:hunter2?3@host/name tag a".to_owned(),
        "fixed_window 5/s store http://host/hunter2 tag a".to_owned(),
    ] {
        let texts = match line.parse::<LimiterConfig>() {
            Err(error) => vec![error.to_string(), format!("{error:?}")],
            Ok(config) => {
                let built = config.build().err();
                let mut texts = vec![config.to_string(), format!("{config:?}")];
                texts.extend(built.map(|error| format!("{error} {error:?}")));
                texts
            }
        };
        assert!(texts.iter().all(|text| !text.contains("hunter2")), "{line}: {texts:?}");
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::*;

    fn read(text: &str) -> Result<LimiterConfig, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_map_is_read_as_a_line() {
        let text = r#"
            policy = "token_bucket"
            rate = "100/s"
            burst = 20
            interval_refill = true
            store = "redis://127.0.0.1"
            tag = "uploads"
            while_away = "share_of 8"
            timeout = "20ms"
            leased = true
        "#;
        let line = "token_bucket 100/s burst 20 interval_refill store redis://127.0.0.1 tag uploads \
                    timeout 20ms while_away share_of 8 leased";
        assert_eq!(read(text), Ok(config(line)));
        let json = serde_json::to_string(&config(line)).unwrap();
        assert_eq!(serde_json::from_str::<LimiterConfig>(&json).unwrap(), config(line));
        assert_eq!(serde_json::from_str::<LimiterConfig>(&format!("{line:?}")).unwrap(), config(line));
    }

    #[test]
    fn permits_in_use_are_a_number() {
        let line = "in_use 20 store redis://127.0.0.1 tag jobs";
        let text = "in_use = 20\nstore = \"redis://127.0.0.1\"\ntag = \"jobs\"";
        assert_eq!(read(text), Ok(config(line)));
        let json = serde_json::to_string(&config(line)).unwrap();
        assert_eq!(json, r#"{"in_use":20,"store":"redis://127.0.0.1","tag":"jobs"}"#);
        assert_eq!(serde_json::from_str::<LimiterConfig>(&json).unwrap(), config(line));
        for text in ["in_use = 20\nlimit = \"fixed_window 5/s\"", "in_use = 20\npolicy = \"fixed_window\""] {
            assert!(read(text).unwrap_err().contains("the only limit"));
        }
        for number in ["2.5", "0", "-1"] {
            let error = read(&format!("in_use = {number}")).unwrap_err();
            assert!(error.contains("a whole number from 1"), "{error}");
        }
    }

    /// With its feature `arbitrary_precision`, `serde_json` passes a number as a map of its text.
    #[test]
    fn a_number_may_come_as_a_map_of_its_text() {
        let read =
            |text: &str| serde_json::from_str::<LimiterConfig>(text).map_err(|error| error.to_string());
        let in_use = r#"{"in_use":{"$serde_json::private::Number":"20"},"tag":"jobs"}"#;
        assert_eq!(read(in_use), Ok(config("in_use 20 tag jobs")));
        let policy = r#"{"policy":"token_bucket","rate":"5/s","burst":{"$serde_json::private::Number":"7"},"tag":null}"#;
        assert!(read(policy).unwrap_err().starts_with("tag must be a text"));
        assert_eq!(read(&policy.replace(r#","tag":null"#, "")), Ok(config("token_bucket 5/s burst 7")));
        for number in ["2.5", "-1", "1e400", "x"] {
            assert!(read(&in_use.replace("20", number)).is_err(), "{number}");
        }
    }

    #[test]
    fn several_limits_have_names() {
        let text = r#"
            store = "redis://127.0.0.1:1"
            tag = "model"
            [limits]
            calls = "token_bucket 100/s burst 20"
            tokens = { policy = "fixed_window", rate = "90000/min" }
        "#;
        let both = read(text).unwrap();
        let refusal = both.build().unwrap().try_acquire_many([("tokens", 90_001)]).unwrap_err();
        assert_eq!(refusal.member(), Some("tokens"));
        let json = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<LimiterConfig>(&json).unwrap(), both);
    }

    #[test]
    fn unknown_fields_are_errors_and_secrets_are_not_written() {
        let policy = "policy = \"fixed_window\"\nrate = \"5/s\"\n";
        for (field, message) in [
            ("stoer = \"redis://:hunter2@h\"", "stoer: there is no such field"),
            ("cells = 3", "cells: fixed_window has only at_wall_clock and from_first_grant"),
            ("prefix = \"a\"", "prefix must be left out where no store is set"),
            ("timeout = 20", "timeout must be a whole number above zero and a unit, such as 50ms or 1s"),
            ("store = \"redis://:hunter2@h\"", "tag must be set for a limit over a store"),
            ("tag = 7", "tag must be a text"),
            (
                "share_of = 8",
                "while_away must be closed, wait, open, share, or share_of with a number from 1, such as share_of 8",
            ),
            ("limit = \"fixed_window 5/s\"", "policy: there is no such field"),
            ("limit = \"redis://:hunter2@h\"", "limit must be a policy, and not an address"),
            ("limits = { a = \"redis://:hunter2@h\" }", "limit must be a policy, and not an address"),
            ("\"redis://:hunter2@h\" = 1", "an address: there is no such field"),
            (
                "limits = { \"redis://:hunter2@h\" = \"fixed_window 5/s\" }",
                "limits must be policies by name, and not by address",
            ),
        ] {
            let error = read(&format!("{policy}{field}")).unwrap_err();
            assert!(error.contains(message) && !error.contains("hunter2"), "{error}");
        }
        let of_limiter =
            "besides the limits there are in_use, time_to_live, store, prefix, tag, timeout, while_away";
        for (text, message) in [
            (format!("{policy}queue_bounds = 5"), "queue_bounds: fixed_window has only at_wall_clock and"),
            (format!("{policy}queue_bounds = 5"), of_limiter),
            ("in_use = 5\ntime_to_die = \"5s\"".to_owned(), "time_to_die: there is no such field"),
            ("in_use = 5\ntime_to_die = \"5s\"".to_owned(), of_limiter),
            (
                format!("{policy}time_to_live = \"5s\""),
                "time_to_live must be left out where in_use is not set",
            ),
            (
                "policy = \"token_bucket 5/s burst 10\"".to_owned(),
                "policy must be the name of a policy; a line is written as limit = \"token_bucket 100/s burst 20\"",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        // A name is no address although it has an at sign.
        let named = r#"{"limits": {"calls@gold": "fixed_window 5/s"}}"#;
        assert!(serde_json::from_str::<LimiterConfig>(named).is_ok());
        // They were built into a limiter, which panicked.
        let (one, other) = (r#""token_bucket 1/s burst 1""#, r#""token_bucket 9/s burst 9""#);
        for json in [
            format!(r#"{{"limit": {one}, "limits": {{"limit": {other}}}}}"#),
            format!(r#"{{"limits": {{"a": {other}}}, "limit": {one}}}"#),
            format!(r#"{{"limit": {one}, "limit": {other}}}"#),
            format!(r#"{{"limits": {{"a": {one}, "a": {other}}}}}"#),
        ] {
            let error = serde_json::from_str::<LimiterConfig>(&json).unwrap_err().to_string();
            let says = ["limit must be set once, or limits instead", "two limits are named \"a\""];
            assert!(says.iter().any(|says| error.starts_with(says)), "{json}: {error}");
        }
        for text in ["limits = {}", "", "tag = \"a\"", "rate = \"5/s\""] {
            let error = read(text).unwrap_err();
            let fields = "a limiter needs limit, limits, in_use, or policy and the fields of that policy";
            assert!(error.starts_with(fields), "{text}: {error}");
        }
        // A value of the wrong type is not shown: it may be a line with an address.
        let away = "while_away must be closed, wait, open, share, or share_of with a number from 1";
        for (json, message) in [
            (
                r#"{"limits": "fixed_window 5/s store redis://:hunter2@h"}"#,
                "limits must be a map from names to",
            ),
            (
                r#"{"limits": ["redis://:hunter2@h"]}"#,
                "invalid type: sequence, expected limits by their names",
            ),
            (r#"{"in_use": 5, "leased": "redis://:hunter2@h"}"#, "leased must be true or false"),
            (r#"{"in_use": 5, "leased": 1}"#, "leased must be true or false"),
            (r#"{"in_use": "redis://:hunter2@h"}"#, "in_use must be a whole number from 1"),
            (r#"{"in_use": 2.5}"#, "in_use is \"2.5\", and must be a whole number from 1"),
            (r#"{"in_use": true}"#, "in_use is \"true\", and must be a whole number from 1"),
            (r#"{"in_use": 5, "while_away": {"share_of": 8}}"#, away),
            (r#"{"in_use": 5, "tag": ["redis://:hunter2@h"]}"#, "tag must be a text"),
            (
                r#"{"limits": {"redis//h/0?password=hunter2": "fixed_window 5/s"}}"#,
                "limits must be policies by name, and not by address",
            ),
            (
                r#"{"policy": "fixed_window", "rate": ["redis://:hunter2@h"]}"#,
                "invalid type: a list or a map",
            ),
        ] {
            let error = serde_json::from_str::<LimiterConfig>(json).unwrap_err().to_string();
            assert!(error.starts_with(message) && !error.contains("hunter2"), "{json}: {error}");
        }
        let secret = config("fixed_window 5/s store redis://u:hunter2@h:1/2 tag a");
        let json = serde_json::to_string(&secret).unwrap();
        assert_eq!(json, r#"{"limit":"fixed_window 5/s","store":"redis://h:1/2","tag":"a"}"#);
    }
}

/// Several stores of one process would count as several processes.
#[test]
fn configurations_with_one_store_share_it() {
    let line = "fixed_window 5/d store redis+unix:///nowhere/s while_away share_of 2 tag a";
    let open = |line: &str| config(line).open().unwrap().unwrap();
    let (one, same) = (
        open(line),
        open(
            "fixed_window 5/d store redis+unix:///nowhere/s while_away share_of 2 tag other prefix tidegate \
              timeout 50ms leased",
        ),
    );
    let others = [
        open("fixed_window 5/d store redis+unix:///nowhere/t while_away share_of 2 tag a"),
        open(&format!("{line} prefix other")),
        open(&format!("{line} timeout 60ms")),
        open("fixed_window 5/d store redis+unix:///nowhere/s while_away share tag a"),
    ];
    assert!(config(line).build().unwrap().try_acquire().unwrap().is_degraded());
    let degraded = |store: &Store| store.counts().degraded;
    assert_eq!((degraded(&one), degraded(&same)), (1, 1));
    assert!(others.iter().all(|other| degraded(other) == 0));
    // A store that no limiter uses is closed when its thread has dropped the last call.
    drop((one, same));
    while degraded(&open(line)) != 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_choice_for_outages_is_a_text() {
    let eight = NonZeroU32::new(8).unwrap();
    for (text, choice) in [
        ("share", WhileAway::Share),
        ("share_of 8", WhileAway::ShareOf(eight)),
        ("open", WhileAway::Open),
        ("wait", WhileAway::Wait),
        ("closed", WhileAway::Closed),
    ] {
        assert_eq!(text.parse(), Ok(choice));
        assert_eq!(choice.to_string(), text);
        #[cfg(feature = "serde")]
        {
            let json = serde_json::to_string(&choice).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<WhileAway>(&json).unwrap(), choice);
            assert_eq!(serde_json::from_reader::<_, WhileAway>(json.as_bytes()).unwrap(), choice);
        }
    }
    for text in ["", "Share", "share_of", "share_of 0", "share_of -1", "share of 8", "8"] {
        let value = if text.is_empty() { String::new() } else { format!(" is {text:?}, and") };
        let allowed = "closed, wait, open, share, or share_of with a number from 1, such as share_of 8";
        let told = format!("while_away{value} must be {allowed}");
        assert_eq!(text.parse::<WhileAway>().unwrap_err().to_string(), told);
        #[cfg(feature = "serde")]
        {
            let error = serde_json::from_str::<WhileAway>(&format!("{text:?}")).unwrap_err();
            assert!(error.to_string().starts_with(&told), "{error}");
        }
    }
}

#[test]
fn an_observer_is_notified_of_permits_in_use_of_one_process() {
    let statistics = Arc::new(Statistics::new());
    let config = config("in_use 2").observed_by(statistics.clone());
    let limiter = config.build().unwrap();
    let both = limiter.try_acquire_many(2).unwrap();
    assert!(limiter.try_acquire().is_err());
    let keys = config.build_keyed(1).unwrap();
    let alice = keys.try_acquire("alice").unwrap();
    assert!(keys.try_acquire("bob").is_err());
    let counts = statistics.snapshot();
    assert_eq!((counts.granted, counts.permits, counts.in_use, counts.too_many_keys), (2, 3, 1, 1));
    drop((both, alice));
}
