//! Runtimes that a test stalls and ends: a manual clock with sleeps that belong to numbered
//! runtimes.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tidegate::clock::{ManualSleep, Sleep};
use tidegate::{Clock, ManualClock, Nanos, Timer};

#[derive(Clone, Debug)]
pub(crate) struct Loops {
    clock: ManualClock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The runtime that is running the test's code.
    current: Option<u32>,
    stalled: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    /// The runtimes whose timers panic the next time they are used.
    panics: BTreeSet<u32>,
    /// The wakers registered with each runtime's timer.
    wakers: Vec<(u32, Waker)>,
    /// How often the timers have called a waker.
    rings: usize,
    /// How often the timers were set to another time.
    resets: usize,
}

impl Loops {
    pub(crate) fn new(clock: ManualClock) -> Loops {
        Loops { clock, state: Arc::default() }
    }

    /// Makes this runtime, or none, run the test's code from now on.
    pub(crate) fn enter(&self, current: impl Into<Option<u32>>) {
        self.lock().current = current.into();
    }

    /// Stalls a runtime: its timer wakes no task from now on.
    pub(crate) fn stall(&self, name: u32) {
        self.lock().stalled.insert(name);
    }

    /// Returns how often the runtimes' timers have called a waker.
    pub(crate) fn rings(&self) -> usize {
        self.lock().rings
    }

    /// Returns how often the runtimes' timers were set to another time.
    pub(crate) fn resets(&self) -> usize {
        self.lock().resets
    }

    /// Makes the runtime's timer panic the next time it is used.
    pub(crate) fn panic_once(&self, name: u32) {
        self.lock().panics.insert(name);
    }

    /// Ends a runtime. Its timer wakes every task one last time, as tokio's does.
    pub(crate) fn end(&self, name: u32) {
        let mut state = self.lock();
        state.ended.insert(name);
        let wakers: Vec<_> = state.wakers.extract_if(.., |(owner, _)| *owner == name).collect();
        drop(state);
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for Loops {
    fn now(&self) -> Nanos {
        self.clock.now()
    }
}

impl Timer for Loops {
    type Sleep = LoopSleep;
    type RuntimeId = u32;

    fn runtime(&self) -> Option<u32> {
        self.lock().current
    }

    fn sleep_until(&self, at: Nanos) -> LoopSleep {
        let name = self.runtime().expect("a loop");
        LoopSleep { loops: self.clone(), name, sleep: self.clock.sleep_until(at), gone: false }
    }

    fn park_until(&self, at: Nanos) {
        self.clock.park_until(at);
    }
}

#[derive(Debug)]
pub(crate) struct LoopSleep {
    loops: Loops,
    name: u32,
    sleep: ManualSleep,
    /// Whether the sleep was polled after its runtime had ended.
    gone: bool,
}

/// A waker that a stalled runtime does not call.
struct Through {
    loops: Loops,
    name: u32,
    waker: Waker,
}

impl Wake for Through {
    fn wake(self: Arc<Self>) {
        if !self.loops.lock().stalled.contains(&self.name) {
            self.loops.lock().rings += 1;
            self.waker.wake_by_ref();
        }
    }
}

impl Future for LoopSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (loops, name, waker) = (self.loops.clone(), self.name, context.waker().clone());
        assert!(!loops.lock().panics.remove(&name), "a timer that panics");
        if loops.lock().ended.contains(&name) {
            self.gone = true;
            return Poll::Pending;
        }
        loops.lock().wakers.push((name, waker.clone()));
        let stalled = loops.lock().stalled.contains(&name);
        let through = Waker::from(Arc::new(Through { loops, name, waker }));
        match Pin::new(&mut self.sleep).poll(&mut Context::from_waker(&through)) {
            Poll::Ready(()) if !stalled => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

impl Sleep for LoopSleep {
    fn reset(mut self: Pin<&mut Self>, at: Nanos) {
        self.loops.lock().resets += 1;
        Pin::new(&mut self.sleep).reset(at);
    }

    fn is_gone(&self) -> bool {
        self.gone
    }
}
