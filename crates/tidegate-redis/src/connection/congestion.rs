//! The number of calls to a server in flight: a congestion window, as in TCP.
//!
//! A server carries out one call after another. Calls that are sent together therefore wait for
//! each other there, and the last ones may get their replies too late, though the server is well.
//! Calls beyond the window wait in this process, in their order: here a call that is too late is
//! given up before it has run.
//!
//! The wait that a call may have at the server is the timeout less the shortest time that a call
//! has taken.
//!
//! | a call waits at the server for | the window |
//! |---|---|
//! | up to a fifth of that | grows by one call: it doubles in each round trip |
//! | up to three eighths | grows by one call in each round trip |
//! | up to a half | stays |
//! | longer, or in vain while others get replies | is halved, once for all calls in flight |
//!
//! The window grows only while it is full. When it stops doubling, the calls that were sent last
//! wait for up to two fifths: the window doubles once more while a reply that shows a wait of a
//! fifth is on its way.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::lock::lock;

/// The initial window. A server works for some milliseconds on this many requests of many keys.
const FIRST: usize = 256;

/// The smallest window at a server that is near, and at one that is far away, where few calls take
/// long.
const SMALLEST: (usize, usize) = (16, 64);

/// The number of calls that give way and wait for room together with the calls that do not.
const GIVING_WAY: usize = 32;

const LARGEST: usize = 16_384;

pub(crate) struct Congestion {
    room: Semaphore,
    /// Calls that give way pass this gate in their order, and then wait for room.
    gate: Semaphore,
    window: Mutex<Window>,
}

struct Window {
    size: usize,
    /// The number of replies since the window grew, of those by which it grows slowly.
    replies: usize,
    /// The number of calls in flight beyond the window. As many end without making room.
    surplus: usize,
    halved: Option<Instant>,
    /// The shortest time that a call has taken.
    shortest: Duration,
}

/// A call in flight. Its end makes room for another one.
pub(crate) struct CallSlot<'a> {
    room: Option<SemaphorePermit<'a>>,
    window: &'a Mutex<Window>,
}

impl Default for Congestion {
    fn default() -> Congestion {
        let window = Window { size: FIRST, replies: 0, surplus: 0, halved: None, shortest: Duration::MAX };
        let (room, gate) = (Semaphore::new(FIRST), Semaphore::new(GIVING_WAY));
        Congestion { room, gate, window: Mutex::new(window) }
    }
}

impl Congestion {
    /// Waits until a call may be sent, after all calls that asked before. A call that gives way is
    /// sent after most of the later calls that do not.
    pub(crate) async fn acquire_slot(&self, gives_way: bool) -> CallSlot<'_> {
        // The semaphores are never closed.
        let _passed = if gives_way { self.gate.acquire().await.ok() } else { None };
        CallSlot { room: self.room.acquire().await.ok(), window: &self.window }
    }

    /// Returns whether a call would have to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.room.available_permits() == 0
    }

    /// The number of calls that may be in flight.
    pub(crate) fn window(&self) -> usize {
        lock(&self.window).size
    }

    /// The longest time that a call takes if it is sent while the window is full.
    pub(crate) fn longest(&self, timeout: Duration) -> Duration {
        let shortest = lock(&self.window).shortest;
        // Before the first reply, the server counts as a near one.
        let shortest = if shortest == Duration::MAX { Duration::ZERO } else { shortest.min(timeout) };
        (timeout + shortest) / 2
    }

    /// Notes a new connection: the server, or the route to it, may differ.
    pub(super) fn connected(&self) {
        lock(&self.window).shortest = Duration::MAX;
    }

    /// Records that a call has its reply after `took`. Returns whether the server is so far away
    /// that a second call may not end within the timeout.
    pub(crate) fn replied(&self, left: Instant, took: Duration, timeout: Duration) -> bool {
        let is_full = self.is_full();
        let mut window = lock(&self.window);
        window.shortest = window.shortest.min(took);
        let (waited, most) = (took - window.shortest, timeout.saturating_sub(window.shortest));
        if waited > most / 2 {
            window.halve(left, left + took, timeout, &self.room);
        } else if is_full && window.size < LARGEST && waited <= most * 3 / 8 {
            window.replies += 1;
            if waited <= most / 5 || window.replies >= window.size {
                window.replies = 0;
                window.size += 1;
                match window.surplus.checked_sub(1) {
                    Some(less) => window.surplus = less,
                    None => self.room.add_permits(1),
                }
            }
        }
        window.shortest > timeout / 4
    }

    /// Records that a call sent at `left` was given up, though the server replied to others
    /// meanwhile.
    pub(crate) fn late(&self, left: Instant, timeout: Duration) {
        lock(&self.window).halve(left, Instant::now(), timeout, &self.room);
    }
}

impl Window {
    fn halve(&mut self, left: Instant, now: Instant, timeout: Duration, room: &Semaphore) {
        if self.halved.is_none_or(|halved| halved < left) {
            self.halved = Some(now);
            let (near, far) = SMALLEST;
            let smallest = if self.shortest > timeout / 4 { far } else { near };
            // A window that is already smaller was that of a near server.
            let size = (self.size / 2).max(smallest).min(self.size);
            self.surplus += self.size - size;
            self.size = size;
            self.surplus -= room.forget_permits(self.surplus);
        }
    }
}

impl Drop for CallSlot<'_> {
    fn drop(&mut self) {
        let mut window = lock(self.window);
        if let Some(less) = window.surplus.checked_sub(1)
            && let Some(room) = self.room.take()
        {
            window.surplus = less;
            room.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::task::coop::unconstrained;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TIMEOUT: Duration = Duration::from_millis(40);

    /// The output of a future that is ready at once.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        unconstrained(future).now_or_never()
    }

    /// As many calls as may be sent.
    fn fill(congestion: &Congestion) -> Vec<CallSlot<'_>> {
        std::iter::from_fn(|| now(congestion.acquire_slot(false))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_window_follows_the_replies() {
        let congestion = Congestion::default();
        congestion.replied(Instant::now(), Duration::ZERO, TIMEOUT);
        let left = Instant::now();
        tokio::time::advance(7 * MS).await;
        // It is not full.
        congestion.replied(left, left.elapsed(), TIMEOUT);
        let mut slots = fill(&congestion);
        assert_eq!(slots.len(), FIRST);
        // A round trip of fast replies doubles the window.
        for _ in 0..FIRST {
            congestion.replied(left, left.elapsed(), TIMEOUT);
            slots.extend(fill(&congestion));
        }
        assert_eq!(slots.len(), 2 * FIRST);
        // A round trip of slower replies adds one, and even slower replies add none.
        for (after, replies) in [(7 * MS, 2 * FIRST), (5 * MS, 1000)] {
            tokio::time::advance(after).await;
            for _ in 0..replies {
                congestion.replied(left, left.elapsed(), TIMEOUT);
                slots.extend(fill(&congestion));
            }
            assert_eq!(slots.len(), 2 * FIRST + 1, "{after:?}");
        }
        // Late replies halve it once.
        tokio::time::advance(2 * MS).await;
        for _ in 0..1000 {
            congestion.replied(left, left.elapsed(), TIMEOUT);
        }
        congestion.late(left, TIMEOUT);
        drop(slots);
        assert_eq!(fill(&congestion).len(), FIRST);
        tokio::time::advance(MS).await;
        let left = Instant::now();
        for _ in 0..10 {
            congestion.late(left, TIMEOUT);
        }
        assert_eq!(fill(&congestion).len(), FIRST / 2);
        for _ in 0..10 {
            tokio::time::advance(MS).await;
            congestion.late(Instant::now(), TIMEOUT);
        }
        assert_eq!(fill(&congestion).len(), SMALLEST.0);
        // The next server is far away.
        congestion.connected();
        let left = Instant::now();
        tokio::time::advance(30 * MS).await;
        assert!(congestion.replied(left, left.elapsed(), TIMEOUT));
        congestion.late(left, TIMEOUT);
        assert_eq!(fill(&congestion).len(), SMALLEST.0);
    }

    /// Calls take 30 ms at least, and may wait at the server for a part of the remaining 10 ms.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_far_away_is_not_taken_for_a_slow_one() {
        let congestion = Congestion::default();
        let slots = fill(&congestion);
        let left = Instant::now();
        assert_eq!(congestion.longest(TIMEOUT), 20 * MS);
        tokio::time::advance(30 * MS).await;
        assert!(congestion.replied(left, left.elapsed(), TIMEOUT), "near");
        assert_eq!((fill(&congestion).len(), congestion.longest(TIMEOUT)), (1, 35 * MS));
        tokio::time::advance(6 * MS).await;
        congestion.replied(left, left.elapsed(), TIMEOUT);
        drop(slots);
        assert_eq!(fill(&congestion).len(), FIRST.div_ceil(2));
        congestion.connected();
        assert_eq!(congestion.longest(TIMEOUT), 20 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_beyond_a_window_that_was_halved_make_no_room() {
        let congestion = Congestion::default();
        let mut slots = fill(&congestion);
        congestion.late(Instant::now(), TIMEOUT);
        // A window that grows meanwhile takes fewer away.
        congestion.replied(Instant::now(), Duration::ZERO, TIMEOUT);
        for _ in 0..FIRST / 2 - 1 {
            slots.pop();
            assert!(congestion.is_full());
        }
        slots.pop();
        assert!(!congestion.is_full() && fill(&congestion).len() == 1);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_give_way_wait_behind_others() {
        let congestion = Congestion::default();
        let mut slots = fill(&congestion);
        let ask = |gives_way| Box::pin(congestion.acquire_slot(gives_way));
        let mut patient: Vec<_> = (0..2 * GIVING_WAY).map(|_| ask(true)).collect();
        assert!(patient.iter_mut().all(|call| now(call.as_mut()).is_none()));
        let mut hurried = ask(false);
        assert!(now(hurried.as_mut()).is_none());
        // All but the first `GIVING_WAY` of them are behind it.
        for first in patient.iter_mut().take(GIVING_WAY) {
            assert!(now(hurried.as_mut()).is_none());
            slots.pop();
            slots.insert(0, now(first.as_mut()).unwrap_or_else(|| panic!("no room")));
        }
        assert!(patient.iter_mut().skip(GIVING_WAY).all(|call| now(call.as_mut()).is_none()));
        slots.pop();
        assert!(now(hurried.as_mut()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_leave_in_their_order() {
        let congestion = Congestion::default();
        let mut slots = fill(&congestion);
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(congestion.acquire_slot(false))).collect();
        assert!(waiting.iter_mut().all(|call| now(call.as_mut()).is_none()));
        while !waiting.is_empty() {
            slots.pop();
            assert!(now(congestion.acquire_slot(false)).is_none());
            let mut first = waiting.remove(0);
            assert!(waiting.iter_mut().all(|call| now(call.as_mut()).is_none()));
            slots.insert(0, now(first.as_mut()).unwrap_or_else(|| panic!("no room")));
        }
    }
}
