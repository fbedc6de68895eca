//! Why a call has no reply, and what the errors of a server mean.

use std::io;

use redis::{ErrorKind, RedisError};

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The store did not carry out the call.
    NotRun(String),
    /// The store may have carried out the call.
    Unknown(String),
    /// The store, or its permissions, do not meet the needs of this crate.
    Misconfigured(String),
}

impl Failure {
    pub(super) fn is_misconfigured(&self) -> bool {
        matches!(self, Failure::Misconfigured(_))
    }
}

/// What an error says about its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The server does not know the script.
    NoScript,
    /// The server will be ready soon.
    NotReady,
    /// The server became a replica.
    ReadOnly,
    /// Another server of the cluster has the slot.
    Moved(String),
    /// Another server of the cluster has the keys that were already moved.
    Ask(String),
    /// The server could not carry out the call.
    Refused,
    /// The connection was lost, and the call may have been carried out.
    Lost,
    /// There is no connection.
    NotConnected,
    /// The peer is not a Redis server, and the connection is unusable.
    NoRedis,
    Misconfigured,
}

pub(super) fn meaning(error: &RedisError) -> Meaning {
    let text = error.detail().unwrap_or_default();
    // These errors have no code of their own, or lose it: a server at its limit of connections
    // sends the first one to any command, a script that was killed replies with the second one,
    // and the client library drops the code of a reply to SELECT.
    let refusals = ["max number of clients", "Script killed by user", "is busy running"];
    if refusals.iter().any(|refusal| text.contains(refusal)) {
        return Meaning::Refused;
    }
    // A redirection is a slot and an address.
    let redirected = || text.split(' ').nth(1).map(str::to_owned);
    match error.code() {
        Some("NOSCRIPT") => Meaning::NoScript,
        Some("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN") => Meaning::NotReady,
        Some("READONLY") => Meaning::ReadOnly,
        Some("MOVED") => redirected().map_or(Meaning::Misconfigured, Meaning::Moved),
        Some("ASK") => redirected().map_or(Meaning::Misconfigured, Meaning::Ask),
        Some("OOM" | "BUSY" | "MISCONF" | "NOREPLICAS" | "UNKILLABLE") => Meaning::Refused,
        Some(_) => Meaning::Misconfigured,
        None => match error.kind() {
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Meaning::Misconfigured,
            ErrorKind::Parse if !is_cut(error) => Meaning::NoRedis,
            _ => Meaning::Lost,
        },
    }
}

/// Returns whether a reply ends too early because the connection was lost. Only these words of the
/// client library distinguish it from a reply of another protocol.
fn is_cut(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.contains("end of input"))
}

/// The text that a message may contain: the words of the server, and never an address or a part of
/// a login.
pub(super) fn redacted_text(error: &RedisError) -> String {
    let text = error.detail().unwrap_or_default();
    // The arguments of AUTH follow, which are a login.
    let text = text.split(", with args").next().unwrap_or_default();
    // The hash and the line of a script follow.
    let text = text
        .split_once(", on @user_script")
        .and_then(|(text, _)| text.rsplit_once(" script: "))
        .map_or(text, |(text, _)| text);
    match error.code() {
        Some(code @ ("MOVED" | "ASK")) => format!("{code}: the server is part of a cluster"),
        Some(code) => match text.split_once(" has no permissions") {
            // The name of the user precedes these words.
            Some((_, to)) => format!("{code} the user has no permissions{to}"),
            None if code == "NOPERM" => "NOPERM the user has too few permissions".to_owned(),
            None => format!("{code} {text}").trim_end().to_owned(),
        },
        None => match error.kind() {
            ErrorKind::Parse if is_cut(error) => {
                "the connection was lost in the middle of a reply".to_owned()
            }
            ErrorKind::Parse => {
                "what answers at its address is no Redis server; the address of a TLS port begins with rediss"
                    .to_owned()
            }
            _ => error.category().to_owned(),
        },
    }
}

/// The failure of an attempt to connect, after which nothing ran.
pub(super) fn of_connecting(error: &RedisError) -> Failure {
    match meaning(error) {
        Meaning::Misconfigured | Meaning::NoRedis => Failure::Misconfigured(redacted_text(error)),
        _ => Failure::NotRun(redacted_text(error)),
    }
}

/// The failure of an attempt to reach a server. The text of the system may contain an address.
pub(super) fn of_reaching(error: &io::Error) -> Failure {
    Failure::NotRun(match error.kind() {
        io::ErrorKind::NotFound => "the name of the host is not resolved, or there is no socket".into(),
        kind => kind.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_reached_is_reported_by_the_kind_of_the_error() {
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "10.1.2.3:7001 refused");
        assert_eq!(of_reaching(&refused), Failure::NotRun("connection refused".into()));
        let Failure::NotRun(text) = of_reaching(&io::ErrorKind::NotFound.into()) else { panic!("it ran") };
        assert!(text.contains("not resolved"), "{text}");
    }

    fn error(text: &str) -> RedisError {
        let parsed = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        parsed.and_then(redis::Value::extract_error).expect_err("an error")
    }

    #[test]
    fn errors_are_reported_without_addresses_and_logins() {
        for (text, means, says) in [
            ("MOVED 866 10.1.2.3:7001", Meaning::Moved("10.1.2.3:7001".into()), "MOVED: the server is part"),
            ("ASK 866 host:7001", Meaning::Ask("host:7001".into()), "ASK: the server is part of a cluster"),
            ("MOVED", Meaning::Misconfigured, "MOVED: "),
            ("TRYAGAIN Multiple keys request", Meaning::NotReady, "TRYAGAIN Multiple keys request"),
            ("LOADING Redis is loading the dataset", Meaning::NotReady, "LOADING Redis is loading"),
            ("MASTERDOWN Link with MASTER is down", Meaning::NotReady, "MASTERDOWN Link with MASTER"),
            ("CLUSTERDOWN The cluster is down", Meaning::NotReady, "CLUSTERDOWN The cluster is down"),
            ("READONLY You can't write", Meaning::ReadOnly, "READONLY You can't write"),
            ("OOM command not allowed", Meaning::Refused, "OOM command not allowed"),
            ("BUSY Redis is busy", Meaning::Refused, "BUSY Redis is busy"),
            ("MISCONF Redis is configured to save", Meaning::Refused, "MISCONF Redis is configured"),
            ("NOREPLICAS Not enough good replicas", Meaning::Refused, "NOREPLICAS Not enough"),
            ("UNKILLABLE Sorry the script", Meaning::Refused, "UNKILLABLE Sorry the script"),
            ("ERR max number of clients reached", Meaning::Refused, "ERR max number of clients reached"),
            ("ERR Error running script: Script killed by user", Meaning::Refused, "ERR Error running"),
            ("ERR Valkey is busy running a script.", Meaning::Refused, "ERR Valkey is busy"),
            ("NOPERM no", Meaning::Misconfigured, "NOPERM "),
            ("ERR unknown command 'EVALSHA'", Meaning::Misconfigured, "ERR unknown command 'EVALSHA'"),
            // Servers since version 7 name the user, and name an unknown command with its
            // arguments.
            (
                "NOPERM User u5er has no permissions to run the 'get' command",
                Meaning::Misconfigured,
                "NOPERM the user has no permissions to run the 'get' command",
            ),
            (
                "ERR ACL failure in script: User u5er has no permissions to run the 'get' command",
                Meaning::Misconfigured,
                "ERR the user has no permissions to run the 'get' command",
            ),
            (
                "ERR The user can't run this command: GET script: 700c0ffee, on @user_script:4.",
                Meaning::Misconfigured,
                "ERR The user can't run this command: GET",
            ),
            ("NOPERM u5er may not", Meaning::Misconfigured, "NOPERM the user has too few permissions"),
            (
                "ERR unknown command `AUTH`, with args beginning with: `u5er`, `5ecret`, ",
                Meaning::Misconfigured,
                "ERR unknown command `AUTH`",
            ),
        ] {
            let error = error(text);
            assert_eq!(meaning(&error), means, "{text}");
            assert!(redacted_text(&error).starts_with(says), "{text}: {}", redacted_text(&error));
            let secrets = ["700", "u5er", "5ecret"];
            assert!(
                secrets.iter().all(|secret| !redacted_text(&error).contains(secret)),
                "{text}: {}",
                redacted_text(&error)
            );
        }
    }
}
