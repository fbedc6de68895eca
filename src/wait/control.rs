//! What a limiter was told to do at run time: plain data under the queue's lock.

use crate::gate::{PAUSED, SHADOW, WATCHED};
use crate::nanos::Nanos;

#[derive(Debug)]
pub(crate) struct Control {
    /// Nobody passes before: the end of the latest pause, also if it is over.
    pub(crate) opens: Nanos,
    /// Somebody wants to know of each call.
    pub(crate) watched: bool,
    /// Nobody is refused, and nobody waits.
    pub(crate) shadow: bool,
}

impl Control {
    pub(crate) fn new() -> Control {
        Control { opens: Nanos::ZERO, watched: false, shadow: false }
    }

    /// The flags of the front.
    pub(crate) fn flags(&self, now: Nanos) -> usize {
        let flag = |is: bool, flag: usize| if is { flag } else { 0 };
        flag(self.opens > now, PAUSED) | flag(self.watched, WATCHED) | flag(self.shadow, SHADOW)
    }
}
