//! [`Away`]: why a call has no reply.

use std::time::Duration;

use tidegate::{Nanos, Refusal};

use crate::breaker::next_rest;

/// Why a call has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Away {
    /// The store may be called again after this time.
    For(Duration),
    /// The requests waited too long for the call, which was not made. The store may be well.
    Late,
    /// The store is misconfigured, which is no outage.
    Misconfigured,
}

impl Away {
    /// A store's thread cannot wait for a store.
    pub(crate) const WOULD_BLOCK: Away = Away::For(Duration::MAX);

    /// The runtime that makes the calls has ended.
    pub(crate) const ENDED: Away = Away::For(Duration::MAX);

    /// How long calls to the store remain suspended.
    pub(crate) fn rest(self) -> Duration {
        match self {
            Away::For(rest) => rest,
            Away::Late => Duration::ZERO,
            Away::Misconfigured => Duration::MAX,
        }
    }

    /// The refusal of a request that neither a store nor a share decides. After a single failure,
    /// the next request asks the store again.
    pub(crate) fn refusal(self) -> Refusal {
        Refusal::Unavailable { retry_after: self.retry_after() }
    }

    /// The `retry_after` of a refused client: at least the first rest of a breaker. A client that
    /// comes back sooner adds to the load of a server that replies late.
    pub(crate) fn retry_after(self) -> Nanos {
        match self.rest() {
            Duration::MAX => Nanos::MAX,
            rest => Nanos::from_duration(rest.max(next_rest(None))),
        }
    }
}
