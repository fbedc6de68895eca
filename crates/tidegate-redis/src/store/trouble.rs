//! [`Trouble`]: the errors of the calls to a store.

use super::Away;
use crate::error::StoreError;

/// The errors of the calls to a store.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// The error of the last call; `None` if that call has a reply.
    pub(super) now: Option<StoreError>,
    /// The last error while the store was away, or of a call that was not made. Unlike `now`, it
    /// outlasts the outcomes of other calls, and so does the next one.
    away: Option<StoreError>,
    /// The last error that showed that the store is misconfigured.
    misconfigured: Option<StoreError>,
}

impl Trouble {
    pub(super) fn note(&mut self, error: StoreError) {
        let last = if error.is_away() { &mut self.away } else { &mut self.misconfigured };
        *last = Some(error.clone());
        self.now = Some(error);
    }

    /// Notes that a call was not made because of the calls without a reply. The store may be well.
    pub(super) fn note_shed(&mut self) {
        self.away = Some(StoreError::away("was not asked, because too many calls had no reply yet"));
    }

    /// The error of a call with this outcome: the last error of its kind.
    pub(super) fn of(&self, away: Away) -> StoreError {
        match away {
            Away::Misconfigured => self.misconfigured.clone(),
            Away::For(_) | Away::Late => self.away.clone(),
        }
        .unwrap_or_else(no_reply)
    }

    /// The error of the last call, which had no reply.
    pub(super) fn last(&self) -> StoreError {
        self.now.clone().unwrap_or_else(no_reply)
    }
}

fn no_reply() -> StoreError {
    StoreError::away("did not reply")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Bug: a message that was lost in an outage was reported as lost by a wrong configuration, if a
    /// call of another limit had met that meanwhile, and the reverse.
    #[test]
    fn the_error_of_a_call_is_not_that_of_another_kind() {
        let (away, misconfigured) = (StoreError::away("refused"), StoreError::misconfigured("NOPERM"));
        let mut trouble = Trouble::default();
        assert!(trouble.of(Away::Late).is_away() && trouble.last().is_away());
        for error in [&away, &misconfigured, &away] {
            trouble.note(error.clone());
            assert_eq!(trouble.last(), *error);
        }
        trouble.now = None;
        assert_eq!(trouble.of(Away::Misconfigured), misconfigured);
        assert_eq!(
            [Away::For(Duration::ZERO), Away::ENDED].map(|outcome| trouble.of(outcome)),
            [away.clone(), away]
        );
    }
}
