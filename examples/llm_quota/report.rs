//! The summary of a run.

use std::ops::Range;
use std::time::Duration;

use crate::client::{Answer, Believed, Call};
use crate::server::{Tally, Terms};
use crate::tenants::TENANTS;

pub(crate) struct Summary<'a> {
    calls: &'a [Call],
    believed: &'a [Believed],
    terms: [Terms; 2],
    succeeded: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
}

impl<'a> Summary<'a> {
    pub(crate) fn new(calls: &'a [Call], believed: &'a [Believed], terms: [Terms; 2]) -> Summary<'a> {
        let (mut succeeded, mut refused, mut failed) = (0, 0, 0);
        for call in calls {
            match &call.answer {
                Answer::Success(_) => succeeded += 1,
                Answer::Refused => refused += 1,
                Answer::Failed(_) => failed += 1,
            }
        }
        Summary { calls, believed, terms, succeeded, refused, failed }
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

    /// Returns the utilisation while the callers asked for more: the used part of the permits that
    /// the callers had at first and that accrued since. It is for the long or the short calls, in
    /// percent of requests and tokens, with the range of time.
    fn utilisation(&self, short: bool) -> Option<([f64; 2], Range<Duration>)> {
        let calls = || self.calls.iter().filter(move |call| call.short == short);
        let from = calls().map(|call| call.began_at).min()?;
        let to = match short {
            // Some long calls may still wait at that time.
            false => self.calls.iter().filter(|call| call.short).map(|call| call.began_at).min()?,
            true => calls().map(|call| call.asked_at).max()?,
        };
        let before = self.believed.partition_point(|believed| believed.at < from);
        let stock = self.believed.get(before.saturating_sub(1))?.budgets;
        let span = to.saturating_sub(from).as_secs_f64();
        let began = self.calls.iter().filter(|call| (from..to).contains(&call.began_at));
        let used: Vec<u32> = began.filter_map(used).collect();
        let amounts = [used.len() as f64, used.iter().map(|used| f64::from(*used)).sum()];
        let percents = [0, 1].map(|n| 100.0 * amounts[n] / (stock[n] + self.terms[n].per_second * span));
        Some((percents, from..to))
    }

    /// Returns the utilisation as a sentence.
    pub(crate) fn utilisation_sentence(&self) -> Option<String> {
        let ([requests, tokens], _) = self.utilisation(false)?;
        let ([short_requests, short_tokens], _) = self.utilisation(true)?;
        Some(format!(
            "Long calls used {requests:.0} % of the requests and {tokens:.0} % of the tokens that there were, \
             short calls {short_requests:.0} % and {short_tokens:.0} %."
        ))
    }

    fn print_utilisation(&self) {
        for (short, name) in [(false, "  long calls"), (true, "  short calls")] {
            let Some(([requests, tokens], Range { start, end })) = self.utilisation(short) else { continue };
            let (from, to) = (start.as_secs_f64(), end.as_secs_f64());
            println!(
                "{name:14}{requests:.1} % of the requests and {tokens:.1} % of the tokens used, {from:.1} s to {to:.1} s"
            );
        }
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

/// Returns the tokens that a call used.
fn used(call: &Call) -> Option<u32> {
    match call.answer {
        Answer::Success(tokens) => Some(tokens),
        _ => None,
    }
}

/// Returns the shortest wait that is not exceeded by `percent` percent.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
