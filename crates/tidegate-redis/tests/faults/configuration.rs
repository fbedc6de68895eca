//! A wrong configuration is an error and no outage, and no fallback hides it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use tidegate::{AnyLimiter, Refusal};
use tidegate_redis::{OpenError, Store, StoreError, WhileAway};

use crate::load;
use crate::relay::Relay;
use crate::support::Server;

/// Asserts that requests are refused, although the store is open while it is away. Returns the
/// error.
async fn refused(url: &str) -> StoreError {
    let store = load::patient(url).while_away(WhileAway::Open).open().unwrap();
    let limiter = load::limiter(&store, "all");
    for _ in 0..10 {
        let refusal = limiter.acquire_now([]).await.unwrap_err();
        assert!(matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })), "{refusal:?}");
    }
    assert_eq!((store.counts().misconfigured, store.counts().answered), (10, 0));
    assert!(!store.is_away());
    let (trouble, checked) = (store.trouble().unwrap(), store.check().await.unwrap_err());
    assert!(!trouble.is_away() && !checked.is_away(), "{trouble}, {checked}");
    trouble
}

fn user(server: &Server, name: &str, rules: &str) -> String {
    server.tell(&format!("ACL SETUSER {name} on >pass-word {rules}"));
    format!("redis://{name}:pass-word@127.0.0.1:{}", server.port())
}

/// The rules in the README.
const LEAN: &str = "-@all +evalsha +eval +get +set +del +pttl +time ~tidegate:*";

/// The additional rules that permits in use need.
const IN_USE: &str = "+hmget +hgetall +hset +hdel +pexpire";

/// Two processes hold, wait, are lost and give back, so that each command of the script is run.
#[tokio::test]
async fn a_user_of_permits_in_use_needs_a_few_more() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    let url = user(&server, "lean", &format!("{LEAN} {IN_USE}"));
    let limit = |span| {
        let limit = load::patient(&url).open().unwrap().counting("all", 2);
        AnyLimiter::from(limit.time_to_live(Duration::from_secs(span)).build().unwrap())
    };
    let (one, other) = (limit(3600), limit(3600));
    let held = one.acquire_now(2).await.unwrap();
    let mut wait = other.acquire();
    assert!(tokio_test::task::spawn(&mut wait).poll().is_pending());
    drop(held);
    let permit = wait.await.unwrap();
    // A process that crashed, by the server's clock.
    let lost = "redis.call('HSET', 'tidegate:1:{all}:in-use', 'crashed!', struct.pack('>ddddd', 1, 1, 0, 0, 1), \
        'all', struct.pack('>ddddd', 2, 1, 0, 1, 1))";
    redis::cmd("EVAL").arg(lost).arg(0).exec(&mut server.connect()).unwrap();
    let second = one.acquire_now(1).await.unwrap();
    drop((permit, second));
    one.pause_for(Duration::from_secs(3600)).unwrap();
    one.resume();
    drop(other.acquire_many(2).await.unwrap());
    // A check reports a missing permission once such a limit is built.
    for command in IN_USE.split(' ').map(|command| command.trim_start_matches('+')) {
        let rules = format!("{LEAN} {IN_USE} -{command}");
        let store = load::patient(user(&server, &format!("without-{command}"), &rules)).open().unwrap();
        store.check().await.unwrap();
        let _limit = store.counting("all", 2).build().unwrap();
        let error = store.check().await.unwrap_err();
        assert!(!error.is_away() && error.to_string().ends_with(&command.to_uppercase()), "{error}");
    }
    let store = load::patient(&url).open().unwrap();
    let _limit = store.counting("all", 2).build().unwrap();
    store.check().await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*self-test").query(&mut server.connect()).unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn a_user_needs_a_few_permissions() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    let url = user(&server, "lean", LEAN);
    let store = load::patient(&url).open().unwrap();
    store.check().await.unwrap();
    let limiter = load::limiter(&store, "all");
    assert_eq!(load::ask_times(&limiter, 5).await.granted, 5);
    // Everything that a limiter does.
    let _ = limiter.status();
    limiter.debit(1).unwrap();
    limiter.pause_for(Duration::from_secs(3600)).unwrap();
    assert!(limiter.resume());
    assert_eq!((store.counts().misconfigured, store.trouble()), (0, None));
    // Without each of them. A server that already had the scripts did not report that their texts
    // may not be sent.
    let commands = ["evalsha", "eval", "get", "set", "del", "time"];
    for (command, is_flushed) in commands.into_iter().flat_map(|command| [(command, false), (command, true)])
    {
        match is_flushed {
            true => _ = server.tell("SCRIPT FLUSH"),
            false => {
                let store = load::patient(&url).open().unwrap();
                store.check().await.unwrap();
                assert_eq!(load::ask(&load::limiter(&store, "all")).await.granted, 1);
            }
        }
        let url = user(&server, &format!("without-{command}"), &LEAN.replace(&format!(" +{command} "), " "));
        let trouble = refused(&url).await.to_string();
        assert!(trouble.to_lowercase().contains(command), "{trouble}");
    }
    refused(&user(&server, "elsewhere", &LEAN.replace("~tidegate", "~other"))).await;
    // A database other than 0.
    let (selects, without) = (format!("{LEAN} +select"), user(&server, "without-select", LEAN));
    let store = load::patient(user(&server, "selects", &selects) + "/1").open().unwrap();
    store.check().await.unwrap();
    assert_eq!(load::ask(&load::limiter(&store, "all")).await.granted, 1, "{:?}", store.trouble());
    let trouble = refused(&format!("{without}/1")).await.to_string();
    assert!(trouble.contains("select"), "{trouble}");
    // A user that is allowed everything except the commands of scripts.
    let trouble = refused(&user(&server, "no-eval", "+@all -eval -evalsha ~*")).await;
    assert!(trouble.to_string().contains("NOPERM"), "{trouble}");
    let store = load::patient(user(&server, "no-script", "+@all -script ~*")).open().unwrap();
    assert_eq!(load::ask_times(&load::limiter(&store, "all"), 5).await.granted, 5);
}

/// Bug: the replies to other calls, which came before the check went on, hid its error.
#[tokio::test]
async fn a_check_reports_its_own_error_while_the_server_replies_to_others() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    let store = load::patient(user(&server, "lean", LEAN)).on_this_runtime().open().unwrap();
    let _limit = store.counting("all", 2).build().unwrap();
    let limiters: Vec<_> = (0..10).map(|_| load::limiter(&store, "all")).collect();
    for _ in 0..20 {
        // The replies to these requests follow the reply to the check.
        let asks = futures_util::future::join_all(limiters.iter().map(load::ask));
        let (checked, asked) = tokio::join!(store.check(), asks);
        assert!(asked.iter().all(|tally| tally.granted == 1), "{asked:?}");
        let error = checked.unwrap_err();
        assert!(!error.is_away() && error.to_string().ends_with("HMGET"), "{error}");
    }
}

#[tokio::test]
async fn wrong_logins_and_databases_are_reported() {
    let Some(server) = Server::start_at_port(&["--requirepass", "of-default"]) else { return };
    let port = server.port();
    let trouble = refused(&format!("redis://127.0.0.1:{port}")).await;
    assert!(trouble.to_string().contains("NOAUTH"), "{trouble}");
    refused(&format!("redis://:wrong@127.0.0.1:{port}")).await;
    refused(&format!("redis://nobody:of-default@127.0.0.1:{port}")).await;
    refused(&format!("redis://:of-default@127.0.0.1:{port}/99")).await;
    refused(&format!("redis+cluster://:of-default@127.0.0.1:{port}")).await;
    refused(&format!("redis+sentinel://127.0.0.1:{port}/main?sentinel_password=of-default")).await;

    // A user with a password that needs to be escaped, and a database.
    server.tell("ACL SETUSER a/b on >p@ss:/? +@all ~*");
    let store = load::patient(format!("redis://a%2Fb:p%40ss%3A%2F%3F@127.0.0.1:{port}/3")).open().unwrap();
    assert_eq!(load::ask(&load::limiter(&store, "all")).await.granted, 1, "{:?}", store.trouble());
    let keyspace = server.info("keyspace", "db3").unwrap_or_default();
    assert!(keyspace.starts_with("keys=1,expires=1"), "{keyspace}");
}

/// Each request once made a connection: a process with a wrong password made a thousand in a
/// second.
#[tokio::test]
async fn a_wrong_login_is_tried_at_intervals() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    server.tell("ACL SETUSER late on >later +@all ~*");
    let connections = || server.info("stats", "total_connections_received").unwrap().parse::<u128>().unwrap();
    for scheme in ["redis+cluster", "redis"] {
        let url = format!("{scheme}://late:pass-word@127.0.0.1:{}", server.port());
        let store = load::patient(url).open().unwrap();
        let limiter = load::limiter(&store, "all");
        let (before, began) = (connections(), Instant::now());
        assert_eq!(load::ask_times(&limiter, 300).await.refused, 300);
        let (took, made) = (began.elapsed(), connections() - before);
        // The first attempt, those after the shortest rests, and the connection that counts them.
        assert!(made <= 2 + took.as_millis() / 75, "{made} connections in {took:?}");
        assert_eq!(store.counts().misconfigured, 300);
        if scheme == "redis" {
            user(&server, "late", "");
            while load::ask(&limiter).await.granted == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(store.trouble(), None);
        }
    }
}

#[tokio::test]
async fn a_foreign_value_under_a_key_is_reported() {
    let Some(server) = Server::start() else { return };
    server.tell("LPUSH tidegate:1:{all}:limit:fixed-864000000000000 x");
    let store = load::patient(server.url()).while_away(WhileAway::Open).open().unwrap();
    let limiter: AnyLimiter = load::limiter(&store, "all");
    assert_eq!(load::ask_times(&limiter, 5).await.refused, 5);
    let trouble = store.trouble().unwrap();
    assert!(!trouble.is_away() && trouble.to_string().contains("WRONGTYPE"), "{trouble}");
    // A text.
    server.tell(&format!("SET tidegate:1:{{all}}:limit:fixed-864000000000000 {}", "9".repeat(5_000)));
    assert_eq!(load::ask_times(&limiter, 5).await.refused, 5);
    let trouble = store.trouble().unwrap();
    assert!(!trouble.is_away() && trouble.to_string().contains("of another program"), "{trouble}");
    // Other limits still work.
    assert_eq!(load::ask(&load::limiter(&store, "other")).await.granted, 1);
}

/// A reply that no script sends is no outage, and is reported.
#[tokio::test]
async fn a_reply_that_makes_no_sense_is_reported() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    for answer in ["+OK\r\n", ":7\r\n", "$-1\r\n", "*0\r\n", "*1\r\n*0\r\n", "*1\r\n:7\r\n"] {
        let relay = Relay::to(server.port()).await;
        let store = load::patient(relay.url()).while_away(WhileAway::Open).open().unwrap();
        let limiter = load::limiter(&store, "all");
        let in_use = AnyLimiter::from(store.counting("all", 1000).build().unwrap());
        assert_eq!(load::ask(&limiter).await.granted, 1);
        assert_eq!((store.trouble(), store.counts().misconfigured), (None, 0));
        relay.reply_instead(answer);
        for (limiter, misconfigured) in [(&limiter, 1), (&in_use, 2)] {
            assert!(limiter.acquire_now(1).await.is_err(), "{answer:?}");
            let trouble = store.trouble().unwrap();
            assert!(!trouble.is_away() && trouble.to_string().contains("no sense"), "{trouble}");
            // The process repeats its report of the held permits after each call without a reply.
            assert!(store.counts().misconfigured >= misconfigured, "{answer:?}");
        }
        let checked = store.check().await.unwrap_err();
        assert!(!checked.is_away() && checked.to_string().contains("no sense"), "{checked}");
    }
}

/// Nothing that a program may print contains an address or a part of a login.
#[tokio::test]
async fn no_secret_is_printed() {
    let Some(server) = Server::start_at_port(&["--requirepass", "5ecret-right"]) else { return };
    let port = server.port().to_string();
    let secrets = ["5ecret", "u5er", "pass-word", "127.0.0.1", "localhost", "n0de.invalid", port.as_str()];
    let mut told = String::new();
    let hosts = format!("127.0.0.1:{port},localhost:{port},n0de.invalid");
    let urls = [
        format!("redis://:5ecret-right@127.0.0.1:{port}"),
        format!("redis://:5ecret-wrong@127.0.0.1:{port}"),
        format!("redis://u5er:5ecret-wrong@localhost:{port}/7"),
        "redis://u5er:5ecret@127.0.0.1:1".to_owned(),
        "redis://u5er:5ecret@n0de.invalid".to_owned(),
        "redis+unix:///127.0.0.1/localhost?user=u5er&pass=5ecret".to_owned(),
        format!("redis+cluster://u5er:5ecret@{hosts}"),
        format!("redis+cluster://:5ecret-right@{hosts}"),
        format!("redis+sentinel://u5er:5ecret@{hosts}/localhost?sentinel_password=5ecret-right"),
        format!("redis+sentinel://u5er:5ecret@{hosts}/localhost"),
        // Users with a missing permission, in the first call and in a script.
        user(&server, "u5er-lean", "-@all +eval ~*"),
        user(&server, "u5er-rich", "+@all -get ~*"),
        user(&server, "u5er-else", "+@all ~5ecret"),
        // Invalid addresses.
        format!("redis://u5er:5ecret@127.0.0.1:{port}0000"),
        format!("redis://u5er:5ecret@localhost:{port}/localhost"),
        format!("http://u5er:5ecret@localhost:{port}"),
        format!("redis+sentinel://u5er:5ecret@{hosts}"),
        format!("redis+cluster://u5er:5ecret@{hosts}/localhost"),
        "rediss+unix:///localhost".to_owned(),
    ];
    for url in urls {
        let builder = Store::builder(&url).timeout(std::time::Duration::from_secs(2));
        told += &format!("{builder:?}");
        let store = match builder.open() {
            Ok(store) => store,
            Err(error) => {
                told += &format!("{error} {error:?}");
                continue;
            }
        };
        let limits = store.limiter("all").limit("limit", load::LINE);
        told += &format!("{store:?} {limits:?}");
        let limiter = limits.build().unwrap();
        let answer = AnyLimiter::from(limiter.clone()).acquire_now([]).await;
        let status = limiter.status().await;
        let error = store.check().await;
        told += &format!("{limiter:?} {answer:?} {status:?} {error:?} {:?}", store.trouble());
        told += &answer.map_or_else(|error| error.to_string(), |_| String::new());
        told += &error.map_or_else(|error| error.to_string(), |()| String::new());
    }
    for error in [OpenError::NoTls, OpenError::Certificate { why: "the ca has no certificates in PEM" }] {
        told += &format!("{error} {error:?}");
    }
    for secret in secrets {
        let at = told.find(secret);
        let around = at.map(|at| &told[at.saturating_sub(200)..at + secret.len()]);
        assert_eq!(around, None, "{secret}");
    }
}

/// The address of a server that is a Redis server for this many commands of a connection, and then
/// replies in HTTP.
fn http_after(commands: usize) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let (mut bytes, mut seen) = ([0; 4096], 0);
            while let Ok(1..) = client.read(&mut bytes) {
                // Each command begins with this sign, which no word of these commands contains.
                for _ in bytes.iter().filter(|byte| **byte == b'*') {
                    seen += 1;
                    let answer = if seen > commands { "HTTP/1.1 400 Bad Request\r\n\r\n" } else { "+OK\r\n" };
                    _ = client.write_all(answer.as_bytes());
                }
                bytes = [0; 4096];
            }
        }
    });
    url
}

/// It counted as a store that is away, and requests waited for ever.
#[tokio::test]
async fn a_server_of_another_protocol_is_reported() {
    let told = "the store cannot be used: what answers at its address is no Redis server";
    // The first commands of a connection are two that name the library, and the test.
    for commands in [0, 2, 3] {
        let trouble = refused(&http_after(commands)).await;
        assert!(trouble.to_string().starts_with(told), "{commands}: {trouble}");
        let store = load::patient(http_after(commands)).while_away(WhileAway::Wait).open().unwrap();
        let refusal = load::limiter(&store, "all").acquire().await.unwrap_err();
        assert!(matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })), "{refusal:?}");
    }
}
