//! [`ClientAddress`]: the address of the client of a request.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::StatusCode;
use http::header::HeaderName;
use http::request::Parts;

use crate::gate::Function;
use crate::network::{InvalidNetwork, Network};

/// The address of the client of a request, as a key of a limiter.
///
/// By default, the address is that of the peer of the connection. Behind proxies, list the proxies
/// that you [trust](ClientAddress::trust), or [count them](ClientAddress::trust_hops), and name the
/// [header](ClientAddress::header) that they write. Without trusted proxies no header is read,
/// because every client can send one.
///
/// # Which address
///
/// Each proxy adds the address of its own client to the right end of the header. So the addresses
/// are read from the right. If an address is that of a trusted proxy, the address to its left is
/// the one that this proxy saw. The first address that is not of a trusted proxy is the client. The
/// text to its left was written by the client and is not read: no bytes there change how the
/// elements of the proxies are read. Reading stops at an element that is not an address, such as
/// `unknown`, and the last proxy counts as the client.
///
/// In `Forwarded`, quoted strings are read from the right, too. A quoted string begins at the
/// nearest quote to the left of its end that no backslash escapes. So a quote that a client leaves
/// open hides nothing that a proxy adds. A trusted proxy must write text of its clients, such as
/// the host, as a quoted string with escapes, or not write it.
///
/// An IPv6 network gives each customer 2<sup>64</sup> addresses or more. So the key of an IPv6
/// client is a [prefix](ClientAddress::ipv6_prefix) of its address, by default 64 bits. An
/// IPv4-mapped IPv6 address counts as the IPv4 address.
///
/// # Examples
///
/// An axum server behind a proxy in a private network. The server stores the address of the peer in
/// the extensions, here through `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
/// use axum::extract::ConnectInfo;
/// use tidegate::{KeyedRateLimiter, Rate, TokenBucket};
/// use tidegate_tower::{ClientAddress, RateLimitLayer};
///
/// let address = ClientAddress::of_peer(|request| {
///     request.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip())
/// });
/// let address = address.trust(["10.0.0.0/8", "::1"])?;
///
/// let policy = TokenBucket::new(Rate::per_second(5), 10);
/// let clients: KeyedRateLimiter<IpAddr> = KeyedRateLimiter::new(policy, 100_000);
/// let layer = RateLimitLayer::keyed(clients, move |request| address.key(request));
/// # Ok::<(), tidegate_tower::InvalidNetwork>(())
/// ```
#[derive(Clone)]
pub struct ClientAddress {
    peer: Function<Parts, Option<IpAddr>>,
    trust: Trust,
    header: ForwardingHeader,
    ipv6_prefix: u8,
}

#[derive(Debug, Clone)]
enum Trust {
    Networks(Vec<Network>),
    Hops(usize),
}

/// The header in which proxies report the address of their client. No other header is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardingHeader {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`.
    #[default]
    XForwardedFor,
    /// `Forwarded: for="[2001:db8::7]:4711", for=10.0.0.2` of RFC 7239.
    Forwarded,
    /// A header with one address, which the last proxy overwrites: `X-Real-IP`, `CF-Connecting-IP`.
    Single(HeaderName),
}

impl ClientAddress {
    /// Creates a `ClientAddress` that finds the address of the peer with this function, in the
    /// extensions of a request.
    ///
    /// | server | peer |
    /// |---|---|
    /// | axum | `Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip())` |
    /// | tonic | `Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip())` |
    #[must_use]
    pub fn of_peer(peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> ClientAddress {
        ClientAddress {
            peer: Arc::new(peer),
            trust: Trust::Networks(Vec::new()),
            header: ForwardingHeader::default(),
            ipv6_prefix: 64,
        }
    }

    /// Trusts proxies with an address in one of these networks. Replaces any earlier setting of
    /// trust.
    ///
    /// # Errors
    ///
    /// [`InvalidNetwork`] with the first text that is not a network.
    pub fn trust(
        self,
        networks: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<ClientAddress, InvalidNetwork> {
        let networks = networks.into_iter().map(|network| network.as_ref().parse());
        let networks: Vec<_> = networks.collect::<Result<_, _>>()?;
        Ok(self.trust_networks(networks))
    }

    /// Like [`trust`](ClientAddress::trust), for parsed networks.
    #[must_use]
    pub fn trust_networks(mut self, networks: impl IntoIterator<Item = Network>) -> ClientAddress {
        self.trust = Trust::Networks(networks.into_iter().collect());
        self
    }

    /// Trusts the last `proxies` hops, whatever their addresses are: 1 if each request passes
    /// through one proxy. Replaces any earlier setting of trust.
    ///
    /// Use this only if no client can bypass the proxies and reach the server directly.
    #[must_use]
    pub fn trust_hops(mut self, proxies: usize) -> ClientAddress {
        self.trust = Trust::Hops(proxies);
        self
    }

    /// Sets the header that trusted proxies write. The default is
    /// [`XForwardedFor`](ForwardingHeader::XForwardedFor).
    #[must_use]
    pub fn header(mut self, header: ForwardingHeader) -> ClientAddress {
        self.header = header;
        self
    }

    /// Sets how many bits of an IPv6 address distinguish clients. The default is 64. Some providers
    /// give one customer a prefix of 56 or 48 bits.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> ClientAddress {
        self.ipv6_prefix = bits;
        self
    }

    /// Returns the key of a request, for [`RateLimitLayer::keyed`](crate::RateLimitLayer::keyed):
    /// the address of its client, and for an IPv6 address the prefix.
    ///
    /// # Errors
    ///
    /// Status 500 if the address of the peer is unknown, because the function given to
    /// [`of_peer`](ClientAddress::of_peer) did not find it in the request.
    pub fn key(&self, request: &Parts) -> Result<IpAddr, StatusCode> {
        match self.client(request).ok_or(StatusCode::INTERNAL_SERVER_ERROR)? {
            v4 @ IpAddr::V4(_) => Ok(v4),
            v6 => Ok(Network::new(v6, self.ipv6_prefix).address()),
        }
    }

    /// Returns the address of the client; `None` if the address of the peer is unknown.
    #[must_use]
    pub fn client(&self, request: &Parts) -> Option<IpAddr> {
        let peer = (self.peer)(request)?.to_canonical();
        let trusted = |address: IpAddr, hop: usize| match &self.trust {
            Trust::Networks(networks) => networks.iter().any(|network| network.contains(address)),
            Trust::Hops(hops) => hop < *hops,
        };
        if !trusted(peer, 0) {
            return Some(peer);
        }
        let reported: Box<dyn Iterator<Item = Option<IpAddr>>> = match &self.header {
            ForwardingHeader::Single(name) => {
                // One proxy writes one address, so several addresses are not from a proxy.
                let mut lines = request.headers.get_all(name).iter();
                let only = lines.next().filter(|_| lines.next().is_none());
                return Some(only.and_then(|line| node(line.as_bytes())).unwrap_or(peer));
            }
            ForwardingHeader::XForwardedFor => {
                let lines = request.headers.get_all("x-forwarded-for").iter().rev();
                Box::new(lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(node))
            }
            ForwardingHeader::Forwarded => {
                let lines = request.headers.get_all("forwarded").iter().rev();
                Box::new(lines.flat_map(|line| split_unquoted(line.as_bytes(), b',')).map(forwarded_for))
            }
        };
        let mut client = peer;
        for (hop, reported) in reported.enumerate() {
            let Some(address) = reported else { break };
            client = address;
            if !trusted(address, hop + 1) {
                break;
            }
        }
        Some(client)
    }
}

impl fmt::Debug for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAddress")
            .field("trust", &self.trust)
            .field("header", &self.header)
            .field("ipv6_prefix", &self.ipv6_prefix)
            .finish_non_exhaustive()
    }
}

/// Returns the parts of a text between separators outside of quoted strings, from the right.
///
/// A quoted string ends with a quote, and begins with the next quote to the left that is not
/// escaped. A quote is escaped if the number of backslashes before it is odd: a backslash escapes
/// the next one, and no backslash precedes a quoted string. So the parts that a proxy wrote
/// correctly are the same whatever text is to their left.
fn split_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut quoted = false;
        let found = (0..text.len()).rev().find(|at| match text[*at] {
            b'"' => {
                quoted = !quoted || is_escaped(text, *at);
                false
            }
            byte => byte == separator && !quoted,
        });
        rest = found.map(|at| &text[..at]);
        Some(found.map_or(text, |at| &text[at + 1..]))
    })
}

/// Returns whether the byte at this index of a quoted string is escaped.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let backslashes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
    backslashes % 2 == 1
}

/// Returns the value of `for` in an element of `Forwarded`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = split_unquoted(element, b';').filter_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        name.eq_ignore_ascii_case(b"for").then_some(value)
    });
    let value = found.next().filter(|_| found.next().is_none())?;
    let value = match value.strip_prefix(b"\"") {
        // No address has a character that needs a backslash.
        Some(quoted) => quoted.strip_suffix(b"\"")?,
        None => value,
    };
    // A proxy may write an obfuscated port: `203.0.113.7:_port`.
    let port = value.windows(2).position(|bytes| bytes == b":_");
    node(port.map_or(value, |at| &value[..at]))
}

/// Parses an address with or without a port: `203.0.113.7:80`, `[2001:db8::7]:80`, `2001:db8::7`.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<std::net::Ipv6Addr>().ok();
    let address = text.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    address.or_else(|| bare().map(IpAddr::V6)).map(|address| address.to_canonical())
}
