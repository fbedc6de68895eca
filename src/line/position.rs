//! Positions in the queue, of its entries and of seats.
//!
//! A position is a number. The upper eight bits hold the priority, the highest priority as the
//! lowest number. The lower bits hold the order of arrival. So positions rise along the queue. Zero
//! is not a position, because arrivals are counted from one.

/// The bits of a position that count arrivals.
const SEQUENCE_BITS: u32 = 56;

/// The position behind all others.
pub(crate) const LAST_POSITION: u64 = u64::MAX;

/// Returns the position of the arrival with this number, of this priority.
pub(crate) fn position_of(priority: i8, number: u64) -> u64 {
    ((i8::MAX.abs_diff(priority) as u64) << SEQUENCE_BITS) | number
}

/// Returns the position behind all others of a priority.
pub(crate) fn end_of(priority: i8) -> u64 {
    position_of(priority, (1 << SEQUENCE_BITS) - 1)
}

/// Returns the priority of a position.
pub(crate) fn priority_of(position: u64) -> i8 {
    // The value has eight bits.
    #[allow(clippy::cast_possible_truncation)]
    i8::MAX.wrapping_sub_unsigned((position >> SEQUENCE_BITS) as u8)
}
