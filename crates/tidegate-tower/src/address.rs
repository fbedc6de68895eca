//! [`ClientAddress`]: which address a request comes from.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use crate::gate::Function;
use crate::network::{InvalidNetwork, Network};

/// The address of the client of a request, as a key of a limiter.
///
/// The address is that of the peer of the connection. Behind proxies, name the proxies that you
/// [trust](ClientAddress::trust), or [count them](ClientAddress::trust_hops), and the
/// [header](ClientAddress::header) that they write. Without a list of proxies no header is read,
/// because every client can send one.
///
/// # Which address
///
/// Each proxy adds the address of its own client to the right of the header. So the addresses are
/// read from the right: as long as an address is that of a trusted proxy, the address to its left
/// is what this proxy saw. The first address that is not of a trusted proxy is the client. What
/// stands to its left was written by the client, and is not read. At an element that is no address,
/// such as `unknown`, reading stops, and the last proxy counts as the client.
///
/// An IPv6 network gives each customer 2<sup>64</sup> addresses or more. So the key of an IPv6
/// client is the [prefix](ClientAddress::ipv6_prefix) of its address, 64 bits unless set. An IPv4
/// address inside of an IPv6 address is an IPv4 address.
///
/// # Examples
///
/// An axum server behind a proxy in a private network. The address of the peer is where the server
/// keeps it; here with `into_make_service_with_connect_info::<SocketAddr>()`.
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

/// The header in which proxies tell the address of their client. No other header is read.
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
    /// The address of the peer, as this function finds it in the extensions of a request.
    ///
    /// | server | peer |
    /// |---|---|
    /// | axum | `parts.extensions.get::<ConnectInfo<SocketAddr>>()` |
    /// | tonic | `parts.extensions.get::<TcpConnectInfo>()` |
    #[must_use]
    pub fn of_peer(peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> ClientAddress {
        ClientAddress {
            peer: Arc::new(peer),
            trust: Trust::Networks(Vec::new()),
            header: ForwardingHeader::default(),
            ipv6_prefix: 64,
        }
    }

    /// Trusts proxies with an address in one of these networks. Replaces what was trusted before.
    ///
    /// # Errors
    ///
    /// [`InvalidNetwork`] with the first text that is no network.
    pub fn trust<'a>(
        mut self,
        networks: impl IntoIterator<Item = &'a str>,
    ) -> Result<ClientAddress, InvalidNetwork> {
        let networks = networks.into_iter().map(str::parse).collect::<Result<_, _>>()?;
        self.trust = Trust::Networks(networks);
        Ok(self)
    }

    /// Trusts the last `proxies` hops, whatever their addresses are: 1 if each request comes
    /// through one proxy. Replaces what was trusted before.
    ///
    /// Choose this only if no client can reach the server past a proxy.
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

    /// Sets how many bits of an IPv6 address tell clients apart. The default is 64; 56 and 48 are
    /// what some providers give to one customer.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> ClientAddress {
        self.ipv6_prefix = bits;
        self
    }

    /// The key of a request, for [`RateLimitLayer::keyed`](crate::RateLimitLayer::keyed): the
    /// address of its client, and of an IPv6 address the prefix.
    ///
    /// # Errors
    ///
    /// Status 500 if the address of the peer is not known: then the server does not keep it where
    /// the function of [`of_peer`](ClientAddress::of_peer) looks.
    pub fn key(&self, request: &Parts) -> Result<IpAddr, StatusCode> {
        match self.client(request).ok_or(StatusCode::INTERNAL_SERVER_ERROR)? {
            v4 @ IpAddr::V4(_) => Ok(v4),
            v6 => Ok(Network::new(v6, self.ipv6_prefix).address()),
        }
    }

    /// The address of the client; `None` if the address of the peer is not known.
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
        let told: Box<dyn Iterator<Item = Option<IpAddr>>> = match &self.header {
            ForwardingHeader::Single(name) => {
                // More than one address is not what one proxy wrote.
                let mut lines = request.headers.get_all(name).iter();
                let only = lines.next().filter(|_| lines.next().is_none());
                return Some(only.and_then(|line| node(line.to_str().ok()?.trim())).unwrap_or(peer));
            }
            ForwardingHeader::XForwardedFor => {
                let told = from_the_right(&request.headers, "x-forwarded-for", false);
                Box::new(told.map(|element| node(element?)))
            }
            ForwardingHeader::Forwarded => {
                let told = from_the_right(&request.headers, "forwarded", true);
                Box::new(told.map(|element| forwarded_for(element?)))
            }
        };
        let mut client = peer;
        for (hop, told) in told.enumerate() {
            let Some(address) = told else { break };
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

/// The elements of all lines of a header, from the right. `None` is a line that is not text.
///
/// With `quotes`, a comma inside of quotes does not end an element. The quotes are counted from the
/// right, so that an open quote that a client sends does not hide what a proxy adds to its right.
fn from_the_right<'a>(
    headers: &'a HeaderMap,
    name: &str,
    quotes: bool,
) -> impl Iterator<Item = Option<&'a str>> + use<'a> {
    headers.get_all(name).iter().rev().flat_map(move |line| {
        let text = line.to_str().ok();
        let mut quoted = false;
        let comma = move |char: char| {
            quoted ^= quotes && char == '"';
            char == ',' && !quoted
        };
        let parts = text.map(|text| text.rsplit(comma).map(|part| Some(part.trim())));
        parts.into_iter().flatten().chain(text.is_none().then_some(None))
    })
}

/// The value of `for` in an element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = element.split(';').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value.trim())
    });
    let value = found.next().filter(|_| found.next().is_none())?;
    match value.strip_prefix('"') {
        Some(quoted) => node(quoted.strip_suffix('"')?),
        None => node(value),
    }
}

/// An address with or without a port: `203.0.113.7:80`, `[2001:db8::7]:80`, `2001:db8::7`.
fn node(text: &str) -> Option<IpAddr> {
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<std::net::Ipv6Addr>().ok();
    let address = text.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    address.or_else(|| bare().map(IpAddr::V6)).map(|address| address.to_canonical())
}
