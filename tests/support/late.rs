//! A timer that is late by a script: a manual clock whose sleeps end later than they should.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tidegate::clock::{ManualSleep, Sleep};
use tidegate::{Clock, ManualClock, Nanos, Timer};

#[derive(Clone, Debug)]
pub(crate) struct LateTimer {
    clock: ManualClock,
    script: Arc<Mutex<Script>>,
}

#[derive(Debug)]
struct Script {
    /// In nanoseconds; repeated from the start after the last one.
    lates: Vec<u64>,
    next: usize,
}

impl LateTimer {
    pub(crate) fn new(clock: ManualClock, lates: Vec<u64>) -> LateTimer {
        LateTimer { clock, script: Arc::new(Mutex::new(Script { lates, next: 0 })) }
    }

    /// Returns when the next sleep until `at` ends.
    fn end(&self, at: Nanos) -> Nanos {
        let mut script = self.script.lock().expect("no panic");
        let late = script.lates[script.next];
        script.next = (script.next + 1) % script.lates.len();
        at.saturating_add(Nanos::new(late))
    }
}

impl Clock for LateTimer {
    fn now(&self) -> Nanos {
        self.clock.now()
    }
}

impl Timer for LateTimer {
    type Sleep = LateSleep;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, at: Nanos) -> LateSleep {
        LateSleep { timer: self.clone(), sleep: self.clock.sleep_until(self.end(at)) }
    }

    fn park_until(&self, at: Nanos) {
        self.clock.park_until(self.end(at));
    }
}

#[derive(Debug)]
pub(crate) struct LateSleep {
    timer: LateTimer,
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
        let end = self.timer.end(at);
        Pin::new(&mut self.sleep).reset(end);
    }
}
