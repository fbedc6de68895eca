//! [`Key`]: the key of the limit that a request counts for.

use http::StatusCode;

/// The key of the limit that a request counts for. A key function returns a `Key`, or a value that
/// converts into one.
///
/// | a key function returns | meaning |
/// |---|---|
/// | the key | the request counts for this key |
/// | `Some(key)`, `None` | `None`: the request is not limited |
/// | `Ok(key)`, `Err(status)` | `Err`: the request is refused with this status |
///
/// In [shadow mode](crate::RateLimitLayer::shadow) a refused request passes without permits. The
/// key function is not called for an [exempt](crate::RateLimitLayer::exempt) request.
///
/// # Examples
///
/// ```
/// use http::StatusCode;
/// use tidegate_tower::Key;
///
/// let missing: Option<&str> = None;
/// let unlimited: Key<&str> = missing.into();
/// assert_eq!(unlimited, Key::Unlimited);
/// let refused: Key<&str> = missing.ok_or(StatusCode::UNAUTHORIZED).into();
/// assert_eq!(refused, Key::Refused(StatusCode::UNAUTHORIZED));
/// ```
///
/// A request without a key is refused with 401, and a request with an unknown key with 403:
///
/// ```
/// use std::collections::HashSet;
/// use http::StatusCode;
/// use tidegate::{KeyedRateLimiter, Rate, TokenBucket};
/// use tidegate_tower::RateLimitLayer;
///
/// let known = HashSet::from(["k-1", "k-2"]);
/// let policy = TokenBucket::new(Rate::per_second(5), 10);
/// let users: KeyedRateLimiter<&str> = KeyedRateLimiter::new(policy, 100_000);
/// let layer = RateLimitLayer::keyed(users, move |request| {
///     let key = request.headers.get("x-api-key").ok_or(StatusCode::UNAUTHORIZED)?;
///     let key = key.to_str().ok().and_then(|key| known.get(key).copied());
///     key.ok_or(StatusCode::FORBIDDEN)
/// });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key<K> {
    /// The request counts for this key.
    Of(K),
    /// The request is not limited.
    Unlimited,
    /// The request has no key and is refused with this status, unless the layer is in [shadow
    /// mode](crate::RateLimitLayer::shadow).
    Refused(StatusCode),
}

impl<K> From<K> for Key<K> {
    fn from(key: K) -> Key<K> {
        Key::Of(key)
    }
}

impl<K> From<Option<K>> for Key<K> {
    fn from(key: Option<K>) -> Key<K> {
        key.map_or(Key::Unlimited, Key::Of)
    }
}

impl<K> From<Result<K, StatusCode>> for Key<K> {
    fn from(key: Result<K, StatusCode>) -> Key<K> {
        key.map_or_else(Key::Refused, Key::Of)
    }
}
