//! Since when a server is silent.

use tokio::time::Instant;

/// When a server replied last, and when this process first decided a request without it since then.
///
/// Each server of a cluster has its own: the replies of the others do not end its outage.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    replied: Option<Instant>,
    decides_since: Option<Instant>,
}

impl Silence {
    /// Records a reply, which ends an outage.
    pub(crate) fn end(&mut self) {
        *self = Silence { replied: Some(Instant::now()), decides_since: None };
    }

    /// Returns both times for a request that is decided now without the server. A server that never
    /// replied counts as one that replied when the first request was decided without it: until then
    /// it may have granted permits to others.
    pub(crate) fn times(&mut self) -> (Instant, Instant) {
        let now = Instant::now();
        (*self.replied.get_or_insert(now), *self.decides_since.get_or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_begins_with_the_last_reply() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(silence.times(), (later(1), later(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(silence.times(), (later(1), later(1)));
        silence.end();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(silence.times(), (later(2), later(3)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(silence.times(), (later(2), later(3)));
    }
}
