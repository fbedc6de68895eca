//! Places in a line, of its entries and of seats.
//!
//! A place is a number: the priority in the upper eight bits, the most important lowest, and below
//! it the order of arrival. So places rise along the line, and zero is no place: arrivals are
//! counted from one.

/// The bits of a place that count arrivals.
const SEQUENCE_BITS: u32 = 56;

/// The place behind all others.
pub(crate) const LAST_PLACE: u64 = u64::MAX;

/// The place of an arrival with this number, of this priority.
pub(crate) fn place_of(priority: i8, number: u64) -> u64 {
    ((i8::MAX.abs_diff(priority) as u64) << SEQUENCE_BITS) | number
}

/// The place behind all of a priority.
pub(crate) fn end_of(priority: i8) -> u64 {
    place_of(priority, (1 << SEQUENCE_BITS) - 1)
}

/// The priority of a place.
pub(crate) fn priority_of(place: u64) -> i8 {
    // The value has eight bits.
    #[allow(clippy::cast_possible_truncation)]
    i8::MAX.wrapping_sub_unsigned((place >> SEQUENCE_BITS) as u8)
}
