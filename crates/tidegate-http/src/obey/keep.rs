//! Lowers what is available at a limiter.

use tidegate::{AllRefusal, AllRequest, AnyLimiter};

pub(super) trait KeepAtMost {
    /// Lowers what is available of a member to at most `n`. Returns how many permits it took.
    fn keep_at_most(&self, member: &str, n: u64) -> Result<u64, AllRefusal>;
}

impl KeepAtMost for AnyLimiter {
    fn keep_at_most(&self, member: &str, n: u64) -> Result<u64, AllRefusal> {
        let status = self.status();
        let Some(of_member) = status.member(member) else { return Ok(0) };
        let above = u32::try_from(of_member.available.saturating_sub(n)).unwrap_or(u32::MAX);
        if above == 0 {
            return Ok(0);
        }
        let single = status.members.len() == 1;
        let request = AllRequest::new();
        let request = if single {
            request.cost_of_others(above)
        } else {
            request.cost_of_others(0).cost(member, above)
        };
        Ok(self.try_acquire_many(request).map_or(0, |_| u64::from(above)))
    }
}
