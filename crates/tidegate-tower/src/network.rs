//! [`Network`]: a range of addresses, such as `10.0.0.0/8`.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses: `10.0.0.0/8`, `2001:db8::/32`, or one address.
///
/// # Examples
///
/// ```
/// use tidegate_tower::Network;
///
/// let private: Network = "10.0.0.0/8".parse()?;
/// assert!(private.contains("10.1.2.3".parse().unwrap()));
/// assert!(!private.contains("11.1.2.3".parse().unwrap()));
/// # Ok::<(), tidegate_tower::InvalidNetwork>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// The error for a text that is not a [`Network`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidNetwork {
    /// The text.
    pub text: String,
}

impl Network {
    /// Creates the range of the addresses that share the first `prefix` bits of `address`. A prefix
    /// longer than the address gives the range of only that address.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Network {
        let address = address.to_canonical();
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.min(longest);
        Network { address: masked(address, prefix), prefix }
    }

    /// Returns whether the address is in this range. An IPv4-mapped IPv6 address counts as the IPv4
    /// address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }

    /// Returns the first address of the range.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        // The 32 bits of an IPv4 address, as the last of 128.
        IpAddr::V4(v4) => {
            let bits = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & bits).into())
        }
        IpAddr::V6(v6) => {
            let bits = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & bits))
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Network {
        Network::new(address, 128)
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Network, InvalidNetwork> {
        let invalid = || InvalidNetwork { text: text.to_owned() };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let Some(prefix) = prefix else { return Ok(address.into()) };
        let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|prefix| digits && *prefix <= longest).ok_or_else(invalid)?;
        // A range of mapped addresses is a range of IPv4 addresses.
        match (address, address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(v4)) if prefix >= 96 => Ok(Network::new(v4.into(), prefix - 96)),
            (IpAddr::V6(_), IpAddr::V4(_)) => Err(invalid()),
            (address, _) => Ok(Network::new(address, prefix)),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl fmt::Display for InvalidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a network: expected an address, or an address/prefix such as 10.0.0.0/8",
            self.text
        )
    }
}

impl Error for InvalidNetwork {}
