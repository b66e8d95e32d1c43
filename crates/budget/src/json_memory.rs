//! Memory of a JSON message once it is parsed, estimated before anything is parsed.
//!
//! A list of empty lists takes three bytes for each of them as text, and many times as much as
//! values.

use toolgate_contract::count_json_values;

/// Memory of one parsed JSON value in a list that has grown, in bytes.
const VALUE_BYTES: usize = 100;
/// Largest estimate of the memory of a message's values, as a number of messages of the largest
/// size. A message of that size must still be accepted if no other one is there.
const MESSAGES_MAX: usize = 4;

/// Returns about how many bytes the values of the JSON text `message` take once they are parsed, if
/// messages have at most `message_bytes_max` bytes. The result is never too small for short texts
/// in lists.
pub fn parsed_json_bytes(message: &[u8], message_bytes_max: usize) -> usize {
    let bytes = count_json_values(message).saturating_mul(VALUE_BYTES);
    bytes.min(message_bytes_max.saturating_mul(MESSAGES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_largest_size_has_a_bounded_estimate() {
        let list = format!("[{}0]", "[],".repeat(1000));
        assert_eq!(parsed_json_bytes(list.as_bytes(), 1 << 20), 200_200);
        assert_eq!(parsed_json_bytes(list.as_bytes(), list.len()), 4 * list.len());
        let text = format!("\"{}\"", ",".repeat(1000));
        assert_eq!(parsed_json_bytes(text.as_bytes(), 1 << 20), VALUE_BYTES);
    }
}
