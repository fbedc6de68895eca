//! The summary of a run.

use std::time::Duration;

use tidegate::Rate;

use crate::client::{Answer, Call};

pub(crate) struct Summary {
    pub(crate) succeeded: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
    first_failure: Option<String>,
    /// The duration of the run, to the last response.
    took: Duration,
    /// The times at which calls were granted, in order.
    grants: Vec<Duration>,
    /// The waits of the calls, the shortest first.
    waits: Vec<Duration>,
    inversions: u64,
}

impl Summary {
    pub(crate) fn new(calls: &[Call]) -> Summary {
        let (mut succeeded, mut refused, mut failed, mut first_failure) = (0, 0, 0, None);
        for call in calls {
            match &call.answer {
                Answer::Success => succeeded += 1,
                Answer::Refused => refused += 1,
                Answer::Failed(failure) => {
                    failed += 1;
                    first_failure.get_or_insert_with(|| failure.clone());
                }
            }
        }
        let mut grants: Vec<_> = calls.iter().map(|call| call.granted_at).collect();
        grants.sort_unstable();
        let mut waits: Vec<_> = calls.iter().map(|call| call.waited).collect();
        waits.sort_unstable();
        let mut order: Vec<_> = calls.iter().map(|call| (call.asked, call.granted)).collect();
        order.sort_unstable();
        let mut order: Vec<_> = order.into_iter().map(|(_, granted)| granted).collect();
        let took = calls.iter().map(|call| call.answered_at).max().unwrap_or_default();
        let inversions = sort(&mut order);
        Summary { succeeded, refused, failed, first_failure, took, grants, waits, inversions }
    }

    pub(crate) fn print_answers(&self) {
        let Summary { succeeded, refused, failed, took, .. } = self;
        let calls = succeeded + refused + failed;
        println!("{:14}{calls} in {:.2} s", "calls", took.as_secs_f64());
        println!("{:14}{succeeded} x 2xx, {refused} x 429, {failed} failed", "answers");
        if let Some(failure) = &self.first_failure {
            println!("{:14}{failure}", "first failure");
        }
    }

    /// Prints the results of the limiter: the rate compared with the configured rate, the waits,
    /// and the order.
    pub(crate) fn print_grants(&self, set: Rate, warm_up: Option<Duration>) {
        let told = |grants: &[Duration]| match rate_of(grants) {
            Some(rate) => {
                format!("{rate:.2}/s, {:.2} % of {set}", 100.0 * rate / set.as_per_second())
            }
            None => "too few calls to tell".to_owned(),
        };
        println!("{:14}{}", "rate", told(&self.grants));
        if let (Some(warm_up), Some(&first)) = (warm_up, self.grants.first()) {
            let warm = self.grants.partition_point(|&at| at < first.saturating_add(warm_up));
            println!("{:14}{}", "  once warm", told(&self.grants[warm..]));
        }
        let [half, most, all] = [50, 99, 100].map(|percent| percentile(&self.waits, percent).as_secs_f64());
        println!("{:14}p50 {half:.3} s, p99 {most:.3} s, max {all:.3} s", "wait");
        println!("{:14}{} pairs granted in another order than they asked", "FIFO", self.inversions);
    }
}

/// Returns the permits per second from the first grant to the last. The first one is free.
fn rate_of(grants: &[Duration]) -> Option<f64> {
    let span = grants.last()?.saturating_sub(*grants.first()?);
    (!span.is_zero()).then(|| (grants.len() - 1) as f64 / span.as_secs_f64())
}

/// Returns the shortest wait that is not exceeded by `percent` percent.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Sorts by merging and returns how many pairs were in the wrong order.
fn sort(order: &mut [u32]) -> u64 {
    if order.len() < 2 {
        return 0;
    }
    let (left, right) = order.split_at_mut(order.len() / 2);
    let mut inversions = sort(left) + sort(right);
    let (mut l, mut r) = (0, 0);
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while l < left.len() || r < right.len() {
        if r == right.len() || l < left.len() && left[l] <= right[r] {
            merged.push(left[l]);
            l += 1;
        } else {
            // This element overtakes all elements that remain on the left.
            inversions += (left.len() - l) as u64;
            merged.push(right[r]);
            r += 1;
        }
    }
    order.copy_from_slice(&merged);
    inversions
}
