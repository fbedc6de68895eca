//! The summary of a run.

use std::time::Duration;

use crate::client::{Answer, Call};
use crate::server::{Tally, Terms};
use crate::tenants::TENANTS;

pub(crate) struct Summary<'a> {
    calls: &'a [Call],
    terms: [Terms; 2],
    succeeded: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
}

impl Summary<'_> {
    pub(crate) fn new(calls: &[Call], terms: [Terms; 2]) -> Summary<'_> {
        let (mut succeeded, mut refused, mut failed) = (0, 0, 0);
        for call in calls {
            match &call.answer {
                Answer::Success(_) => succeeded += 1,
                Answer::Refused => refused += 1,
                Answer::Failed(_) => failed += 1,
            }
        }
        Summary { calls, terms, succeeded, refused, failed }
    }

    pub(crate) fn print(&self, tally: &Tally) {
        let Summary { calls, succeeded, refused, failed, .. } = self;
        let took = calls.iter().map(|call| call.answered_at).max().unwrap_or_default();
        println!("{:14}{} in {:.2} s", "calls", calls.len(), took.as_secs_f64());
        println!("{:14}{succeeded} x 2xx, {refused} x 429, {failed} failed", "answers");
        let failure = calls.iter().find_map(|call| match &call.answer {
            Answer::Failed(failure) => Some(failure),
            _ => None,
        });
        if let Some(failure) = failure {
            println!("{:14}{failure}", "first failure");
        }
        let [requests, tokens] = tally.lowest;
        println!(
            "{:14}{} calls, {} refused, at most {} in flight; never less than {requests:.1} requests and {tokens:.0} tokens left",
            "server", tally.calls, tally.refused, tally.most_in_flight
        );
        let answered = || calls.iter().filter_map(|call| used(call).map(|used| (call.estimate, used)));
        let estimated: u64 = answered().map(|(estimate, _)| u64::from(estimate)).sum();
        let actual: u64 = answered().map(|(_, used)| u64::from(used)).sum();
        let percent = 100.0 * actual as f64 / estimated.max(1) as f64;
        println!("{:14}{estimated} estimated, {actual} used, {percent:.0} %", "tokens");
        self.print_utilisation();
        self.print_tenants();
    }

    /// How much of what came in was used, from the first call that waited in the queue to the beginning of the last.
    fn print_utilisation(&self) {
        let waited = self.calls.iter().filter(|call| !call.waited[1].is_zero());
        let Some(from) = waited.map(|call| call.began_at).min() else { return };
        let to = self.calls.iter().map(|call| call.began_at).max().unwrap_or_default();
        let span = to.saturating_sub(from).as_secs_f64();
        if span <= 0.0 {
            return;
        }
        let steady = self.calls.iter().filter(|call| (from..to).contains(&call.began_at));
        let used: Vec<u32> = steady.filter_map(used).collect();
        let amounts = [used.len() as f64, used.iter().map(|used| f64::from(*used)).sum()];
        let mut percents = [0.0; 2];
        for ((percent, amount), terms) in percents.iter_mut().zip(amounts).zip(self.terms) {
            *percent = 100.0 * amount / (terms.per_second * span);
        }
        let [requests, tokens] = percents;
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        println!(
            "{:14}{requests:.1} % of the requests, {tokens:.1} % of the tokens, from {from:.1} s to {to:.1} s",
            "utilisation"
        );
    }

    fn print_tenants(&self) {
        println!();
        println!(
            "{:14}{:>8} {:>6} {:>8} {:>20} {:>20}",
            "tenant", "priority", "calls", "tokens", "own limit p50, p90", "queue p50, p90"
        );
        for (number, tenant) in TENANTS.iter().enumerate() {
            let calls = || self.calls.iter().filter(|call| call.tenant == number);
            let tokens: u64 = calls().filter_map(used).map(u64::from).sum();
            let [own, queue] = [0, 1].map(|wait| {
                let mut waits: Vec<_> = calls().map(|call| call.waited[wait]).collect();
                waits.sort_unstable();
                let [half, most] = [50, 90].map(|percent| percentile(&waits, percent).as_secs_f64());
                format!("{half:.3} s, {most:.3} s")
            });
            let own = if tenant.part.is_some() { own } else { "-".to_owned() };
            println!(
                "{:14}{:>8} {:>6} {tokens:>8} {own:>20} {queue:>20}",
                tenant.name,
                tenant.priority,
                calls().count()
            );
        }
        println!();
    }
}

/// The tokens that a call used.
fn used(call: &Call) -> Option<u32> {
    match call.answer {
        Answer::Success(tokens) => Some(tokens),
        _ => None,
    }
}

/// The shortest wait that so many percent do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
