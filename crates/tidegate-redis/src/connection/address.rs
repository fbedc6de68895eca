//! The address of a store: one server, sentinels that know it, or a cluster.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::tls::Connector;
use crate::error::OpenError;

/// Where a server is, and the login and the database that a connection to it begins with.
#[derive(Clone)]
pub(crate) struct Node {
    pub(super) info: ConnectionInfo,
    /// Makes the connection an encrypted one.
    pub(super) tls: Option<Connector>,
}

impl Node {
    fn new(url: &str, tls: Option<&Connector>) -> Result<Node, OpenError> {
        // The text of the error may have the address, and so a password.
        let info = url.into_connection_info().map_err(|_| OpenError::Address)?;
        Ok(Node { info, tls: tls.cloned() })
    }

    /// This login at another server.
    pub(super) fn at(&self, host: &str, port: u16) -> Node {
        let info = self.info.clone().set_addr(ConnectionAddr::Tcp(host.into(), port));
        Node { info, tls: self.tls.clone() }
    }

    /// Host and port; `None` of a socket in the file system.
    pub(super) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => Some((host, *port)),
            _ => None,
        }
    }
}

/// What an address leads to.
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

/// Which kind of TLS an address asks for.
pub(crate) fn wants_tls(url: &str) -> bool {
    let protocol = url.split(['+', ':']).next();
    matches!(protocol, Some("rediss" | "valkeys"))
}

/// The names and values of a query.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

impl Address {
    /// Reads an address. `tls` is used for each server, if the address asks for it.
    pub(crate) fn read(url: &str, tls: Option<&Connector>) -> Result<Address, OpenError> {
        let (scheme, rest) = url.split_once("://").ok_or(OpenError::Address)?;
        let (protocol, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !matches!(protocol, "redis" | "valkey" | "rediss" | "valkeys") || rest.contains('#') {
            return Err(OpenError::Address);
        }
        if kind == "unix" {
            // A socket on this machine needs no encryption.
            let query = rest.split_once('?').map_or("", |(_, query)| query);
            let is_known = pairs(query).all(|(name, _)| matches!(name, "db" | "user" | "pass"));
            return match tls {
                None if is_known => Ok(Address::Server(Node::new(url, None)?)),
                _ => Err(OpenError::Address),
            };
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let node = |login: &str, host: &str, database: &str| {
            let at = if login.is_empty() { "" } else { "@" };
            Node::new(&format!("redis://{login}{at}{host}/{database}"), tls)
        };
        match kind {
            // What a server does not have, such as a database in the query or a second host, is not
            // left out in silence.
            "" if query.is_empty() && !hosts.contains(',') => {
                Ok(Address::Server(Node::new(&format!("redis://{rest}"), tls)?))
            }
            "cluster" if path.is_empty() && query.is_empty() => {
                let seeds: Result<_, _> = hosts.split(',').map(|host| node(login, host, "")).collect();
                Ok(Address::Cluster(seeds?))
            }
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(OpenError::Address);
                }
                let (mut user, mut password) = ("", "");
                for (name, value) in pairs(query) {
                    match name {
                        "sentinel_user" => user = value,
                        "sentinel_password" => password = value,
                        _ => return Err(OpenError::Address),
                    }
                }
                let of_sentinels = match (user, password) {
                    ("", "") => String::new(),
                    (_, "") => return Err(OpenError::Address),
                    _ => format!("{user}:{password}"),
                };
                let sentinel = |host: &str| {
                    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
                    let port = if has_port { "" } else { ":26379" };
                    node(&of_sentinels, &format!("{host}{port}"), "")
                };
                let sentinels: Result<_, _> = hosts.split(',').map(sentinel).collect();
                // Its host is replaced by the one that a sentinel tells.
                let login = node(login, "localhost", database)?;
                Ok(Address::Sentinels { sentinels: sentinels?, name: name.into(), login })
            }
            _ => Err(OpenError::Address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, OpenError> {
        Address::read(url, None)
    }

    fn places(nodes: &[Node]) -> Vec<(&str, u16)> {
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
        assert_eq!(places(&seeds), [("a", 1), ("b", 6379), ("::1", 3)]);
        assert!(seeds.iter().all(|node| login(node) == (None, Some("p"), 0)));

        let url = "redis+sentinel://u:p@a,b:1,[::1]/main/4?sentinel_user=s&sentinel_password=%2F";
        let Ok(Address::Sentinels { sentinels, name, login: of_primary }) = read(url) else {
            panic!("no sentinels")
        };
        assert_eq!(places(&sentinels), [("a", 26379), ("b", 1), ("::1", 26379)]);
        assert!(sentinels.iter().all(|node| login(node) == (Some("s"), Some("/"), 0)));
        assert_eq!((name.as_str(), login(&of_primary)), ("main", (Some("u"), Some("p"), 4)));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for url in [
            "",
            "127.0.0.1:6379",
            "http://127.0.0.1",
            "redis://",
            "redis://a:port",
            "redis://a/database",
            "redis://a#insecure",
            "redis://a,b",
            "redis://a?db=3",
            "rediss://a/0?insecure=true",
            "redis+unix:///tmp/s?database=2",
            "redis+unix:///tmp/s?db=2&tls",
            "redis+sentinel://a/main?sentinel_user=s",
            "redis+cluster://a,/",
            "redis+cluster://a/3",
            "redis+cluster://a?read=replicas",
            "redis+sentinel://a",
            "redis+sentinel://a/main?sentinel_pass=x",
            "redis+other://a",
            "rediss+unix:///tmp/s#x",
        ] {
            assert!(matches!(read(url), Err(OpenError::Address)), "{url}");
        }
        assert!(wants_tls("rediss://a") && wants_tls("valkeys+cluster://a") && !wants_tls("redis://a"));
    }
}
