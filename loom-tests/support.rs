//! Support for all models: the bound, a clock and a waker made of loom's types, a limiter and a
//! request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};

use crate::clock::{Clock, Sleep, Timer};
use crate::error::Refusal;
use crate::limiter::pending::{Poller, Progress};
use crate::limiter::shared::Shared;
use crate::line::rule::{Rule, Single};
use crate::line::visit::Demand;
use crate::policy::SmoothBursty;
use crate::rate::Rate;
use crate::sync::lock;
use crate::time::Nanos;

pub(crate) const SECOND: Nanos = Nanos::new(1_000_000_000);

pub(crate) type TestLimiter<R = Single<SmoothBursty>> = Arc<Shared<R, LoomClock>>;

/// A request for one permit.
pub(crate) const ONE: Demand<'_, u32> = Demand::exactly(&1, 0);

/// Runs a model of two threads in every interleaving, without a bound.
pub(crate) fn model(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Runs a model of three threads in every interleaving with up to three preemptions, or
/// `LOOM_MAX_PREEMPTIONS`.
pub(crate) fn model_of_three(model: impl Fn() + Send + Sync + 'static) {
    model_up_to(3, model);
}

/// Runs a model of three threads with the given number of preemptions, for models that would take
/// too long otherwise.
pub(crate) fn model_up_to(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// A clock that stands still until the model sets it.
#[derive(Clone, Debug)]
pub(crate) struct LoomClock(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now: Nanos,
    /// The waker of each sleep, by its due time and a number that distinguishes equal times.
    sleepers: Vec<(u32, Nanos, Waker)>,
    next: u32,
}

impl State {
    fn take(&mut self, sleeper: u32) -> Option<Waker> {
        let at = self.sleepers.iter().position(|(number, ..)| *number == sleeper)?;
        Some(self.sleepers.remove(at).2)
    }
}

impl LoomClock {
    pub(crate) fn new() -> LoomClock {
        LoomClock(Arc::new(Mutex::new(State { now: Nanos::ZERO, sleepers: Vec::new(), next: 0 })))
    }

    /// Sets the time without waking, as a late timer does.
    pub(crate) fn set_without_waking(&self, now: Nanos) {
        lock(&self.0).now = now;
    }

    /// Sets the time, and wakes the sleeps that are due.
    pub(crate) fn set(&self, now: Nanos) {
        let due: Vec<_> = {
            let mut state = lock(&self.0);
            state.now = now;
            state.sleepers.extract_if(.., |(_, at, _)| *at <= now).collect()
        };
        for (_, _, waker) in due {
            waker.wake();
        }
    }
}

impl Clock for LoomClock {
    fn now(&self) -> Nanos {
        lock(&self.0).now
    }
}

impl Timer for LoomClock {
    type Sleep = LoomSleep;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, at: Nanos) -> LoomSleep {
        let mut state = lock(&self.0);
        state.next += 1;
        LoomSleep { clock: self.clone(), at, number: state.next }
    }

    fn park_until(&self, _: Nanos) {
        loom::thread::park();
    }
}

#[derive(Debug)]
pub(crate) struct LoomSleep {
    clock: LoomClock,
    at: Nanos,
    number: u32,
}

impl LoomSleep {
    /// Registers the waker, or returns it if the sleep is due.
    fn sleep(&self, state: &mut State, waker: Waker) -> Option<Waker> {
        if self.at <= state.now {
            return Some(waker);
        }
        state.sleepers.push((self.number, self.at, waker));
        None
    }
}

impl Future for LoomSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.clock.0);
        let old = state.take(self.number);
        let due = self.sleep(&mut state, context.waker().clone());
        drop(state);
        drop(old);
        if due.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Sleep for LoomSleep {
    fn reset(mut self: Pin<&mut Self>, at: Nanos) {
        self.at = at;
        let mut state = lock(&self.clock.0);
        let due = state.take(self.number).and_then(|waker| self.sleep(&mut state, waker));
        drop(state);
        if let Some(waker) = due {
            waker.wake();
        }
    }
}

impl Drop for LoomSleep {
    fn drop(&mut self) {
        let sleeper = lock(&self.clock.0).take(self.number);
        drop(sleeper);
    }
}

/// A waker that records whether it was called.
pub(crate) struct Woken(AtomicBool);

impl Woken {
    pub(crate) fn new() -> Arc<Woken> {
        Arc::new(Woken(AtomicBool::new(false)))
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// One permit per second, none saved. The first permit is due.
pub(crate) fn one_per_second() -> (TestLimiter, LoomClock) {
    let clock = LoomClock::new();
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(Duration::ZERO);
    let limiter = Arc::new(Shared::new(Single::new(policy, &clock), clock.clone(), Duration::ZERO));
    (limiter, clock)
}

/// One permit per second, none saved. The first permit is taken, so the next is due at 1 s.
pub(crate) fn first_taken() -> (TestLimiter, LoomClock) {
    let (limiter, clock) = one_per_second();
    limiter.try_acquire(ONE).expect("the first");
    (limiter, clock)
}

/// A request that waits as a task does.
pub(crate) struct Asking<R: Rule = Single<SmoothBursty>> {
    pub(crate) limiter: TestLimiter<R>,
    pub(crate) wait: Progress<R::Ask>,
    pub(crate) waker: Waker,
}

impl<R: Rule> Asking<R> {
    pub(crate) fn new(limiter: &TestLimiter<R>, ask: R::Ask) -> Asking<R> {
        Asking { limiter: limiter.clone(), wait: Progress::new(ask), waker: Waker::from(Woken::new()) }
    }

    pub(crate) fn poll(&mut self) -> Poll<Result<Nanos, Refusal>> {
        self.limiter.poll(&mut self.wait, Poller::Task(&self.waker)).map_ok(|answer| answer.waited)
    }

    /// Returns whether the request has its permits without another call: no clock moves, and no
    /// queue is served.
    pub(crate) fn is_granted(&mut self) -> bool {
        self.wait.is_done() || matches!(self.limiter.claim(&mut self.wait), Some(Ok(_)))
    }

    /// Like [`is_granted`](Asking::is_granted), and asserts that no request waits.
    pub(crate) fn is_last_granted(&mut self) -> bool {
        let waiting = lock(&self.limiter.line).len();
        assert_eq!(waiting, 0, "nobody is left waiting");
        self.is_granted()
    }
}

impl<R: Rule> Drop for Asking<R> {
    fn drop(&mut self) {
        self.limiter.leave(&mut self.wait);
    }
}
