//! The address of a store: one server, sentinels that know it, or a cluster.

use std::num::NonZeroU16;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::tls::Connector;
use crate::error::OpenError;

/// The address of a server, and the login and the database with which a connection to it begins.
#[derive(Clone)]
pub(crate) struct Node {
    pub(super) info: ConnectionInfo,
    /// Encrypts the connection.
    pub(super) tls: Option<Connector>,
}

impl Node {
    /// Returns `None` for a text that is not an address. The text of the error may contain a
    /// password.
    fn new(url: &str, tls: Option<&Connector>) -> Option<Node> {
        let info = url.into_connection_info().ok()?;
        Some(Node { info, tls: tls.cloned() })
    }

    /// Reads the parts of an address of one host.
    fn read(login: &str, host: &str, database: &str, tls: Option<&Connector>) -> Result<Node, OpenError> {
        // The colons of an IPv6 address are in brackets.
        let port = host.rsplit(']').next().and_then(|end| end.split_once(':')).map_or("", |(_, port)| port);
        let of_database = database.trim_matches('/');
        if login.contains(['@', '/', '?']) || !is_escaped(login) {
            return Err(wrong(ESCAPE));
        }
        if !port.is_empty() && number::<NonZeroU16>(port).is_none() {
            return Err(wrong(PORT));
        }
        if host.is_empty() || host.starts_with(':') {
            return Err(wrong("names no host"));
        }
        if !of_database.is_empty() && !is_database(of_database) {
            return Err(wrong(DATABASE));
        }
        let at = if login.is_empty() { "" } else { "@" };
        let node = Node::new(&format!("redis://{login}{at}{host}/{database}"), tls);
        node.ok_or(wrong(TEXT))?.checked()
    }

    /// Returns an error if the login is a user without a password.
    fn checked(self) -> Result<Node, OpenError> {
        let login = self.info.redis_settings();
        let is_set = |text: Option<&str>| text.is_some_and(|text| !text.is_empty());
        if is_set(login.username()) && !is_set(login.password()) { Err(wrong(USER)) } else { Ok(self) }
    }

    /// This login at another server.
    pub(super) fn at(&self, host: &str, port: u16) -> Node {
        let info = self.info.clone().set_addr(ConnectionAddr::Tcp(host.into(), port));
        Node { info, tls: self.tls.clone() }
    }

    /// Returns whether a server has not completed the handshake of an encrypted connection yet.
    pub(super) fn is_in_handshake(&self) -> bool {
        self.tls.as_ref().is_some_and(Connector::is_in_handshake)
    }

    /// Host and port; `None` for a socket in the file system.
    pub(super) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => Some((host, *port)),
            _ => None,
        }
    }
}

/// What an address refers to.
pub(crate) enum Address {
    Server(Node),
    Sentinels {
        sentinels: Vec<Node>,
        /// The name of the primary among the sentinels.
        name: String,
        /// The login at the primary.
        login: Node,
    },
    /// Some servers of a cluster.
    Cluster(Vec<Node>),
}

/// Returns whether an address asks for TLS.
pub(crate) fn wants_tls(url: &str) -> bool {
    let protocol = url.split(['+', ':']).next();
    matches!(protocol, Some("rediss" | "valkeys"))
}

fn wrong(why: &'static str) -> OpenError {
    OpenError::Address { why }
}

/// Returns the names and values of a query.
fn pairs(query: &str) -> Result<Vec<(&str, &str)>, OpenError> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs: Vec<_> = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    let is_twice = |(i, (name, _)): (usize, &(&str, &str))| pairs[..i].iter().any(|(other, _)| other == name);
    if pairs.iter().enumerate().any(is_twice) { Err(wrong("has a field twice")) } else { Ok(pairs) }
}

/// The error for a character that would be read as the end of a login or as the start of an escape
/// sequence.
const ESCAPE: &str = "has a character that must be escaped: in a user or password / is written as %2F, ? as %3F, \
                      # as %23, @ as %40, and % as %25";
/// The client library would log in as the default user.
const USER: &str =
    "has a user and no password; a user that needs none is given any, as in redis://user:any@host";
const TEXT: &str = "has a host that no server can have, or a user or password that is no text";
const DATABASE: &str = "has a database that is no number from 0 to 2147483647";
const PORT: &str = "has a port that is no number from 1 to 65535; IPv6 is written in brackets";

/// Parses a number that consists of digits only.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_database(text: &str) -> bool {
    number::<i32>(text).is_some()
}

/// Returns whether each `%` begins an escape sequence. The client library takes any other `%`
/// literally.
fn is_escaped(text: &str) -> bool {
    let mut parts = text.split('%');
    let is_code = |part: &str| part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    parts.next();
    parts.all(is_code)
}

impl Address {
    /// Reads an address. `tls` is used for each server, if the address asks for it.
    pub(crate) fn read(url: &str, tls: Option<&Connector>) -> Result<Address, OpenError> {
        let (scheme, rest) =
            url.split_once("://").ok_or(wrong("does not begin with a scheme and ://, such as redis://"))?;
        let (protocol, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let is_known = matches!(protocol, "redis" | "valkey" | "rediss" | "valkeys")
            && matches!(kind, "" | "unix" | "sentinel" | "cluster");
        if !is_known {
            return Err(wrong(
                "has an unknown scheme: it must be redis or valkey, or with TLS rediss or valkeys, alone or with \
                 +unix, +sentinel or +cluster",
            ));
        }
        if rest.contains('#') {
            return Err(wrong(ESCAPE));
        }
        match kind {
            "unix" => Address::of_socket(url, rest, tls),
            _ => Address::of_hosts(kind, rest, tls).map_err(|error| {
                let has_login_behind =
                    rest.split_once(['/', '?']).is_some_and(|(_, rest)| rest.contains('@'));
                if has_login_behind { wrong(ESCAPE) } else { error }
            }),
        }
    }

    fn of_socket(url: &str, rest: &str, tls: Option<&Connector>) -> Result<Address, OpenError> {
        if tls.is_some() {
            return Err(wrong("is that of a socket, which has no TLS: it begins with redis+unix"));
        }
        const PATH: &str = "has no path of a socket, as redis+unix:///path has";
        // The client library drops a login and a port before the path.
        if !rest.starts_with('/') {
            return Err(wrong(PATH));
        }
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        for (name, value) in pairs(query)? {
            match name {
                "db" if !is_database(value) => return Err(wrong(DATABASE)),
                "user" | "pass" if !is_escaped(value) => return Err(wrong(ESCAPE)),
                "db" | "user" | "pass" => {}
                _ => return Err(wrong("is that of a socket, and has a field that is not db, user or pass")),
            }
        }
        let node = Node::new(url, None).ok_or(wrong(PATH))?;
        // The client library replaces bytes that are no text by this character.
        let login = node.info.redis_settings();
        if [login.username(), login.password()].into_iter().flatten().any(|text| text.contains('\u{FFFD}')) {
            return Err(wrong(TEXT));
        }
        node.checked().map(Address::Server)
    }

    fn of_hosts(kind: &str, rest: &str, tls: Option<&Connector>) -> Result<Address, OpenError> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let node = |host, database| Node::read(login, host, database, tls);
        // A setting that a server does not have, such as a database in the query or a second host,
        // is not silently dropped.
        if kind != "sentinel" && !query.is_empty() {
            return Err(wrong("has fields after a ?, as only that of a socket or of sentinels has"));
        }
        match kind {
            "cluster" if !path.is_empty() => Err(wrong("has a database, and a cluster has none")),
            "cluster" => {
                let seeds: Result<_, _> = hosts.split(',').map(|host| node(host, "")).collect();
                Ok(Address::Cluster(seeds?))
            }
            "sentinel" => Address::of_sentinels(login, hosts, path, query, tls),
            _ if hosts.contains(',') => {
                Err(wrong("has several hosts, as only one with +sentinel or +cluster in its scheme has"))
            }
            _ => Ok(Address::Server(node(hosts, path)?)),
        }
    }

    fn of_sentinels(
        login: &str,
        hosts: &str,
        path: &str,
        query: &str,
        tls: Option<&Connector>,
    ) -> Result<Address, OpenError> {
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(wrong("names no primary, as redis+sentinel://host,host/name does"));
        }
        let (mut user, mut password) = ("", "");
        for (name, value) in pairs(query)? {
            match name {
                "sentinel_user" => user = value,
                "sentinel_password" => password = value,
                _ => {
                    let why = "is that of sentinels, and has a field that is not sentinel_user or \
                               sentinel_password";
                    return Err(wrong(why));
                }
            }
        }
        let of_sentinels = match (user, password) {
            ("", "") => String::new(),
            (_, "") => return Err(wrong("has a sentinel_user and no sentinel_password")),
            _ => format!("{user}:{password}"),
        };
        let sentinel = |host: &str| {
            let has_colon = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
            let port = match has_colon || host.is_empty() {
                true if host.ends_with(':') => "26379",
                true => "",
                false => ":26379",
            };
            Node::read(&of_sentinels, &format!("{host}{port}"), "", tls)
        };
        let sentinels: Result<_, _> = hosts.split(',').map(sentinel).collect();
        // The host of this address is replaced by the host that a sentinel reports.
        let login = Node::read(login, "localhost", database, tls)?;
        Ok(Address::Sentinels { sentinels: sentinels?, name: name.into(), login })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, OpenError> {
        Address::read(url, None)
    }

    fn hosts(nodes: &[Node]) -> Vec<(&str, u16)> {
        nodes.iter().filter_map(Node::host_and_port).collect()
    }

    fn login(node: &Node) -> (Option<&str>, Option<&str>, i64) {
        let login = node.info.redis_settings();
        (login.username(), login.password(), login.db())
    }

    #[test]
    fn an_address_has_hosts_a_login_and_a_database() {
        let Ok(Address::Server(node)) = read("redis://u:p%40q@[::1]:7/3") else { panic!("no server") };
        assert_eq!(node.host_and_port(), Some(("::1", 7)));
        assert_eq!(login(&node), (Some("u"), Some("p@q"), 3));
        let Ok(Address::Server(node)) = read("valkey://example.org") else { panic!("no server") };
        assert_eq!(node.host_and_port(), Some(("example.org", 6379)));
        let Ok(Address::Server(node)) = read("redis+unix:///tmp/s?db=2") else { panic!("no server") };
        assert_eq!((node.host_and_port(), login(&node).2), (None, 2));

        let Ok(Address::Cluster(seeds)) = read("redis+cluster://:p@a:1,b,[::1]:3") else {
            panic!("no cluster")
        };
        assert_eq!(hosts(&seeds), [("a", 1), ("b", 6379), ("::1", 3)]);
        assert!(seeds.iter().all(|node| login(node) == (None, Some("p"), 0)));

        let url = "redis+sentinel://u:p@a,b:1,[::1]/main/4?sentinel_user=s&sentinel_password=%2F";
        let Ok(Address::Sentinels { sentinels, name, login: of_primary }) = read(url) else {
            panic!("no sentinels")
        };
        assert_eq!(hosts(&sentinels), [("a", 26379), ("b", 1), ("::1", 26379)]);
        assert!(sentinels.iter().all(|node| login(node) == (Some("s"), Some("/"), 0)));
        assert_eq!((name.as_str(), login(&of_primary)), ("main", (Some("u"), Some("p"), 4)));
        // Bug: the port of a sentinel with an empty port was that of a server.
        let Ok(Address::Sentinels { sentinels, .. }) = read("redis+sentinel://a:,[::1]:/main") else {
            panic!("no sentinels")
        };
        assert_eq!(hosts(&sentinels), [("a", 26379), ("::1", 26379)]);
    }

    #[test]
    fn an_error_reports_what_is_wrong_with_an_address() {
        for (url, says) in [
            ("", "does not begin with a scheme"),
            ("127.0.0.1:6379", "does not begin with a scheme"),
            ("redis:/a", "does not begin with a scheme"),
            ("http://127.0.0.1", "has an unknown scheme"),
            ("redis+other://a", "has an unknown scheme"),
            ("redis://", "names no host"),
            ("redis://:1", "names no host"),
            ("redis://u:p@", "names no host"),
            ("redis+cluster://a,", "names no host"),
            ("redis+sentinel://a,/main", "names no host"),
            ("redis://a:port", "has a port"),
            ("redis://a:70000", "has a port"),
            ("redis://a:0", "has a port that is no number from 1 to 65535"),
            ("redis://a:+1", "has a port"),
            ("redis+cluster://a,b:0", "has a port"),
            ("redis+sentinel://a:0/main", "has a port"),
            ("redis://::1", "IPv6 is written in brackets"),
            ("redis://[::z]", "has a host that no server can have"),
            ("redis://a b", "has a host that no server can have"),
            ("redis://:%FF@a", "or a user or password that is no text"),
            ("redis://a/database", "has a database that is no number"),
            ("redis://a/-1", "has a database that is no number from 0 to 2147483647"),
            ("redis://a/+1", "has a database that is no number"),
            ("redis://a/2147483648", "has a database that is no number"),
            ("redis+unix:///tmp/s?db=-1", "has a database that is no number"),
            ("redis+unix:///tmp/s?db=99999999999", "has a database that is no number"),
            ("redis+sentinel://a/main/x", "has a database that is no number"),
            ("redis+unix:///tmp/s?db=x", "has a database that is no number"),
            ("redis://a,b", "has several hosts"),
            ("redis://a?db=3", "has fields after a ?"),
            ("rediss://a/0?insecure=true", "has fields after a ?"),
            ("redis+cluster://a?read=replicas", "has fields after a ?"),
            ("redis+cluster://a,/", "names no host"),
            ("redis+cluster://a/3", "a cluster has none"),
            ("redis+sentinel://a", "names no primary"),
            ("redis+sentinel://a/main?sentinel_pass=x", "a field that is not sentinel_user"),
            ("redis+sentinel://a/main?sentinel_user=s", "no sentinel_password"),
            ("redis://alice@a", "has a user and no password"),
            ("redis://alice:@a", "has a user and no password"),
            ("redis+cluster://alice@a,b", "has a user and no password"),
            ("redis+sentinel://alice@a/main", "has a user and no password"),
            ("redis+unix:///tmp/s?user=alice", "has a user and no password"),
            ("redis+unix:///tmp/s?db=1&db=2", "has a field twice"),
            ("redis+sentinel://a/main?sentinel_password=a&sentinel_password=b", "has a field twice"),
            ("redis+unix:///tmp/s?database=2", "a field that is not db"),
            ("redis+unix:///tmp/s?db=2&tls", "a field that is not db"),
            ("redis+unix://tmp", "has no path of a socket"),
            // Bug: the login and the port were dropped.
            ("redis+unix://u:p@localhost/tmp/s", "has no path of a socket"),
            ("redis+unix://localhost:1/tmp/s", "has no path of a socket"),
            // Bug: the password was another one.
            ("redis+unix:///tmp/s?pass=%FF", "or a user or password that is no text"),
            ("redis://a#insecure", "must be escaped"),
            ("rediss+unix:///tmp/s#x", "must be escaped"),
            ("redis://:p#w@a", "must be escaped"),
            ("redis://:p/w@a", "must be escaped"),
            ("redis://p@w@a", "must be escaped"),
            ("redis://u:p@w@a/0", "must be escaped"),
            ("redis+cluster://p@w@a,b", "must be escaped"),
            ("redis+sentinel://p@w@a/main", "must be escaped"),
            ("redis+sentinel://a/main?sentinel_password=p@w", "must be escaped"),
            ("redis+sentinel://a/main?sentinel_password=%zz", "must be escaped"),
            // Bug: the host of this address was "u".
            ("redis+sentinel://a/main?sentinel_user=u&sentinel_password=1?x", "must be escaped"),
            ("redis+sentinel://a/main?sentinel_password=1/x", "must be escaped"),
            ("redis://:p%zz@a", "% as %25"),
            ("redis://:p%@a", "must be escaped"),
            ("redis://%4:p@a", "must be escaped"),
            ("redis+unix:///tmp/s?pass=%zz", "must be escaped"),
            ("redis://:1/w@a", "must be escaped"),
            ("redis://:p?w@a/0", "must be escaped"),
            ("redis+cluster://:p/w@a,b", "must be escaped"),
            ("redis+sentinel://:p/w@a/main", "must be escaped"),
            ("redis+sentinel://:p?w@a/main", "must be escaped"),
        ] {
            let Err(OpenError::Address { why }) = read(url) else { panic!("{url}") };
            assert!(why.contains(says), "{url}: {why}");
        }
        assert!(wants_tls("rediss://a") && wants_tls("valkeys+cluster://a") && !wants_tls("redis://a"));
    }
}
