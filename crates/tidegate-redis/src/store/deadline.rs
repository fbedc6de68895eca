//! [`Deadline`]: the time within which a call has an outcome.

use std::time::Duration;

/// The time within which a call has an outcome.
///
/// A server that replies to no call for the timeout of the store is away, and the call ends. While
/// the server replies to others, a call waits for its reply until its deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// The time limit of a call that does not have to queue behind others for that long.
    pub(crate) reply_within: Duration,
    /// The time limit of a call that does. It then has the store's timeout for its reply, from when
    /// it is sent.
    pub(crate) at_most: Duration,
    /// The call is made regardless of how many others wait.
    pub(crate) must_send: bool,
    /// While calls wait to be sent, others go before this one.
    pub(crate) gives_way: bool,
}

impl Deadline {
    /// The deadline of a message that no caller waits for.
    pub(crate) const NONE: Deadline =
        Deadline { reply_within: Duration::MAX, at_most: Duration::MAX, must_send: false, gives_way: true };

    /// The deadline of a call that is made in any case, because its content would otherwise be
    /// lost.
    pub(crate) const MUST_SEND: Deadline = Deadline { must_send: true, ..Deadline::NONE };

    /// The deadline of a call whose caller waits for at most `time`.
    pub(crate) fn of(time: Duration) -> Deadline {
        Deadline { reply_within: time, at_most: time, must_send: false, gives_way: false }
    }

    /// The deadline of one call instead of two.
    pub(crate) fn and(self, other: Deadline) -> Deadline {
        Deadline {
            reply_within: self.reply_within.min(other.reply_within),
            at_most: self.at_most.min(other.at_most),
            must_send: self.must_send || other.must_send,
            gives_way: self.gives_way && other.gives_way,
        }
    }
}
