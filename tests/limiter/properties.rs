//! A limiter with its queue against a simple model: a list of waiters, and exact integers. Joins,
//! drops, tries, refunds, changes of the rate and times are random, on the manual clock.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::AcquireOwned;
use tidegate::{Clock, ManualClock, Nanos, Rate, RateLimiter, Refusal, Request, SmoothBursty};

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A request joins, and waits if necessary.
    Join(u32),
    /// A request joins, and waits at most this many nanoseconds.
    JoinWithin(u32, u64),
    /// A request joins with exactly the wait that it needs, or with a nanosecond less.
    JoinJust(u32, bool),
    /// The future of a waiter is dropped.
    Drop(usize),
    /// The future of a waiter is leaked: never polled again, and never dropped.
    Forget(usize),
    Try(u32),
    Refund(u32),
    /// Sets the rate to this many permits per second.
    SetRate(u64),
    Pass(u64),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (1u32..5).prop_map(Act::Join),
        2 => (1u32..5, 0..2 * SECOND).prop_map(|(n, within)| Act::JoinWithin(n, within)),
        2 => (1u32..5, any::<bool>()).prop_map(|(n, less)| Act::JoinJust(n, less)),
        3 => any::<usize>().prop_map(Act::Drop),
        1 => any::<usize>().prop_map(Act::Forget),
        3 => (1u32..5).prop_map(Act::Try),
        1 => (1u32..5).prop_map(Act::Refund),
        1 => (1u64..50).prop_map(Act::SetRate),
        6 => (0..SECOND / 2).prop_map(Act::Pass),
        1 => (0..30 * SECOND).prop_map(Act::Pass),
    ];
    vec(act, 1..100)
}

// The reference model

/// Ticks of 1/16 ns.
const PER_NANO: i128 = 16;

/// The catch-up of a new limiter.
const CATCH_UP: i128 = 10_000_000 * PER_NANO;

struct Model {
    now: i128,
    /// When no permit is stored.
    zero: i128,
    permits: i128,
    burst: i128,
    /// The waiters: name, permits, and the latest time of the grant.
    line: VecDeque<(usize, u32, Option<i128>)>,
    /// The granted requests, and the times of the grants.
    granted: Vec<(usize, i128)>,
    refused: Vec<usize>,
    /// The latest time that a grant was charged as of.
    charged: i128,
    /// By how much the last grants were late, and when that was recorded.
    late: i128,
    noted: i128,
}

impl Model {
    /// Returns the time at which a new request is charged if its permits are available: not before
    /// it was due, and not further back than the last grants were late, unless the limiter was idle
    /// in between.
    fn charge_at(&self) -> i128 {
        let (due, late) = (Self::ceil(self.zero), self.late.min(CATCH_UP));
        let idle = self.now - self.noted > CATCH_UP || self.now - due > 2 * late;
        if idle { self.now } else { due.max(self.now - late) }
    }

    /// Grants a request that arrives now.
    fn take_now(&mut self, n: u32) {
        let at = self.charge_at();
        if self.late > 0 {
            (self.late, self.noted) = (self.late.min(self.now - at), self.now);
        }
        self.take(at, n);
    }

    /// A waiter sees its grant.
    fn see(&mut self) {
        if self.line.is_empty() {
            (self.late, self.noted) = (self.now - self.charged, self.now);
        }
    }

    fn price(&self, n: u32) -> i128 {
        let ticks = i128::from(n) * i128::from(SECOND) * PER_NANO;
        (ticks + self.permits - 1) / self.permits
    }

    /// Returns the first whole nanosecond at or after a tick.
    fn ceil(tick: i128) -> i128 {
        (tick + PER_NANO - 1).div_euclid(PER_NANO) * PER_NANO
    }

    fn floor(&self, at: i128) -> i128 {
        at - self.burst - (PER_NANO - 1)
    }

    fn take(&mut self, at: i128, n: u32) {
        self.zero = self.zero.max(self.floor(at)) + self.price(n);
        self.charged = self.charged.max(at);
    }

    /// Returns when a request behind all waiters is due.
    fn due_behind_all(&self) -> i128 {
        let ahead: i128 = self.line.iter().map(|(_, n, _)| self.price(*n)).sum();
        match self.line.is_empty() {
            true => Self::ceil(self.zero),
            false => Self::ceil(self.zero.max(self.floor(self.now)) + ahead),
        }
    }

    /// Advances to a time, and serves all waiters at their times.
    fn pass_to(&mut self, target: i128) {
        while let Some((name, n, deadline)) = self.line.front().copied() {
            let due = Self::ceil(self.zero);
            if deadline.is_some_and(|deadline| due > deadline) {
                self.refused.push(name);
            } else if due <= target {
                self.now = self.now.max(due);
                self.granted.push((name, self.now));
                self.take(due, n);
            } else {
                break;
            }
            self.line.pop_front();
        }
        self.now = target;
    }

    fn join(&mut self, name: usize, n: u32, within: Option<i128>) {
        let deadline = within.map(|within| self.now + within);
        if deadline.is_some_and(|deadline| self.due_behind_all() > deadline) {
            self.refused.push(name);
            return;
        }
        if self.line.is_empty() && self.zero <= self.now {
            self.granted.push((name, self.now));
            self.take_now(n);
            return;
        }
        self.line.push_back((name, n, deadline));
        self.pass_to(self.now);
    }

    fn attempt(&mut self, n: u32) -> Result<(), i128> {
        if self.line.is_empty() && self.zero <= self.now {
            self.take_now(n);
            return Ok(());
        }
        Err((self.due_behind_all() - self.now) / PER_NANO)
    }

    fn refund(&mut self, n: u32) {
        let worth = i128::from(n) * i128::from(SECOND) * PER_NANO / self.permits;
        self.zero = (self.zero - worth).max(self.floor(self.now)).min(self.zero);
        self.pass_to(self.now);
    }

    /// Refuses waiters that are now too late, as if they had not been ahead of the others.
    fn set_rate(&mut self, permits: i128) {
        self.permits = permits;
        let mut stays = VecDeque::new();
        for waiter in std::mem::take(&mut self.line) {
            std::mem::swap(&mut self.line, &mut stays);
            let due = self.due_behind_all();
            std::mem::swap(&mut self.line, &mut stays);
            if waiter.2.is_some_and(|deadline| due > deadline) {
                self.refused.push(waiter.0);
            } else {
                stays.push_back(waiter);
            }
        }
        self.line = stays;
        self.pass_to(self.now);
    }
}

// The limiter

/// Records when it was woken.
struct Woken {
    clock: ManualClock,
    at: Mutex<Option<Nanos>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let now = self.clock.now();
        self.at.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(now);
    }
}

struct Waiting {
    name: usize,
    future: Pin<Box<AcquireOwned<SmoothBursty, ManualClock>>>,
    woken: Arc<Woken>,
    /// Whether its first poll is over.
    waited: bool,
}

struct Real {
    limiter: RateLimiter<SmoothBursty, ManualClock>,
    clock: ManualClock,
    waiting: Vec<Waiting>,
    granted: Vec<(usize, Nanos)>,
    refused: Vec<usize>,
    /// Whether a waiter has seen its grant since the last update of the model.
    seen: bool,
}

impl Real {
    fn join(&mut self, name: usize, n: u32, within: Option<u64>) {
        let future = match within {
            None => self.limiter.acquire_owned(n),
            Some(within) => {
                self.limiter.acquire_owned(Request::permits(n).within(Duration::from_nanos(within)))
            }
        };
        let woken = Arc::new(Woken { clock: self.clock.clone(), at: Mutex::new(Some(self.clock.now())) });
        self.waiting.push(Waiting { name, future: Box::pin(future), woken, waited: false });
        self.poll();
    }

    /// Polls the woken futures, and no others.
    fn poll(&mut self) {
        let (granted, refused, seen) = (&mut self.granted, &mut self.refused, &mut self.seen);
        let mut again = true;
        while std::mem::take(&mut again) {
            self.waiting.retain_mut(|waiter| {
                let woken = waiter.woken.at.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(at) = woken else { return true };
                again = true;
                let waker = Waker::from(waiter.woken.clone());
                match waiter.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => {
                        waiter.waited = true;
                        return true;
                    }
                    Poll::Ready(Ok(_)) => {
                        *seen |= waiter.waited;
                        granted.push((waiter.name, at));
                    }
                    Poll::Ready(Err(_)) => refused.push(waiter.name),
                }
                false
            });
        }
    }
}

proptest! {
    #[test]
    fn the_queue_does_what_an_obvious_one_does(
        permits in 1u64..50, burst in prop_oneof![Just(0), 0..3 * SECOND], acts in some_acts(),
    ) {
        let clock = ManualClock::new();
        let policy = SmoothBursty::new(Rate::per_second(permits)).max_burst(Duration::from_nanos(burst));
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        let mut real = Real { limiter, clock, waiting: Vec::new(), granted: Vec::new(), refused: Vec::new(), seen: false };
        let mut model = Model {
            now: 0, zero: 0, permits: permits.into(), burst: i128::from(burst) * PER_NANO,
            line: VecDeque::new(), granted: Vec::new(), refused: Vec::new(), charged: 0, late: 0, noted: 0,
        };
        let mut forgotten = Vec::new();
        for (name, act) in acts.into_iter().enumerate() {
            match act {
                Act::Join(n) => {
                    model.join(name, n, None);
                    real.join(name, n, None);
                }
                Act::JoinWithin(n, within) => {
                    model.join(name, n, Some(i128::from(within) * PER_NANO));
                    real.join(name, n, Some(within));
                }
                Act::JoinJust(n, less) => {
                    let wait = ((model.due_behind_all() - model.now) / PER_NANO).max(0) - i128::from(less);
                    if let Ok(within) = u64::try_from(wait) {
                        model.join(name, n, Some(wait * PER_NANO));
                        real.join(name, n, Some(within));
                        prop_assert_eq!(real.refused.contains(&name), less);
                    }
                }
                Act::Drop(which) | Act::Forget(which) if !real.waiting.is_empty() => {
                    let gone = real.waiting.remove(which % real.waiting.len());
                    if let Act::Forget(_) = act {
                        forgotten.push(gone.name);
                        std::mem::forget(gone.future);
                    } else {
                        model.line.retain(|(name, ..)| *name != gone.name);
                        drop(gone);
                        model.pass_to(model.now);
                    }
                }
                Act::Drop(_) | Act::Forget(_) => {}
                Act::Try(n) => {
                    let told = real.limiter.try_acquire_many(n).map(drop).map_err(|refusal| match refusal {
                        Refusal::Limited { retry_after } => i128::from(retry_after.as_u64()),
                        _ => -1,
                    });
                    prop_assert_eq!(told, model.attempt(n));
                }
                Act::Refund(n) => {
                    model.refund(n);
                    real.limiter.refund(n);
                }
                Act::SetRate(permits) => {
                    model.set_rate(permits.into());
                    real.limiter.set_rate(Rate::per_second(permits));
                }
                Act::Pass(nanos) => {
                    model.pass_to(model.now + i128::from(nanos) * PER_NANO);
                    real.clock.advance(Duration::from_nanos(nanos));
                }
            }
            real.poll();
            if std::mem::take(&mut real.seen) {
                model.see();
            }
            prop_assert_eq!(real.limiter.status().waiting, model.line.len());
        }
        // Leaked waiters had their turns like all others, but no future saw their grants.
        model.granted.retain(|(name, _)| !forgotten.contains(name));
        model.refused.retain(|name| !forgotten.contains(name));
        let granted: Vec<_> = real.granted.iter().map(|(name, at)| (*name, i128::from(at.as_u64()) * PER_NANO)).collect();
        prop_assert_eq!(granted, model.granted);
        real.refused.sort_unstable();
        model.refused.sort_unstable();
        prop_assert_eq!(real.refused, model.refused);
    }
}
