//! A timer that is late by a script: its sleeps end later than they should.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tidegate::clock::{ManualSleep, Sleep};
use tidegate::{Clock, ManualClock, Nanos, Timer};

#[derive(Clone)]
pub(crate) struct LateTimer<C = ManualClock> {
    clock: C,
    script: Script,
}

/// How late each sleep is, in nanoseconds.
#[derive(Clone)]
struct Script(Arc<Mutex<dyn Iterator<Item = u64> + Send>>);

impl Script {
    /// Returns when the next sleep until `at` ends.
    fn end(&self, at: Nanos) -> Nanos {
        let late = self.0.lock().expect("no panic").next().expect("an endless script");
        at.saturating_add(Nanos::new(late))
    }
}

impl<C> LateTimer<C> {
    /// Creates a timer. The numbers in `lates` are the nanoseconds by which its sleeps are late,
    /// one number for each sleep.
    pub(crate) fn new(clock: C, lates: impl Iterator<Item = u64> + Send + 'static) -> LateTimer<C> {
        LateTimer { clock, script: Script(Arc::new(Mutex::new(lates))) }
    }
}

impl<C: Clock> Clock for LateTimer<C> {
    fn now(&self) -> Nanos {
        self.clock.now()
    }
}

impl<C: Timer<Sleep = ManualSleep>> Timer for LateTimer<C> {
    type Sleep = LateSleep;
    type RuntimeId = C::RuntimeId;

    fn runtime(&self) -> Option<C::RuntimeId> {
        self.clock.runtime()
    }

    fn sleep_until(&self, at: Nanos) -> LateSleep {
        LateSleep { script: self.script.clone(), sleep: self.clock.sleep_until(self.script.end(at)) }
    }

    fn park_until(&self, at: Nanos) {
        self.clock.park_until(self.script.end(at));
    }
}

impl<C: fmt::Debug> fmt::Debug for LateTimer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clock.fmt(f)
    }
}

pub(crate) struct LateSleep {
    script: Script,
    sleep: ManualSleep,
}

impl Future for LateSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.sleep).poll(context)
    }
}

impl Sleep for LateSleep {
    fn reset(mut self: Pin<&mut Self>, at: Nanos) {
        let end = self.script.end(at);
        Pin::new(&mut self.sleep).reset(end);
    }
}
