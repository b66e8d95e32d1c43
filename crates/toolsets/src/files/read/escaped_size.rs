//! The size of a file's content as JSON text, where control characters take more bytes than in the
//! file.

/// The maximum size of a file's content as JSON, in bytes.
const ESCAPED_BYTES_MAX: usize = 20 << 20;
/// The number of bytes that a control character takes in JSON, for example `\u0001`.
const CONTROL_CHAR_BYTES: usize = 6;
/// The number of bytes of a file whose control characters are counted in one step.
const BLOCK_BYTES: usize = 64 << 10;

/// Returns the length of the longest start of `bytes` that takes at most about 20 MiB in JSON.
pub(super) fn fitting_prefix_len(bytes: &[u8]) -> usize {
    if bytes.len() <= ESCAPED_BYTES_MAX / CONTROL_CHAR_BYTES {
        return bytes.len();
    }
    let mut escaped = 0;
    for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        escaped += block.len() + (CONTROL_CHAR_BYTES - 1) * count_control_chars(block);
        if escaped > ESCAPED_BYTES_MAX {
            return index * BLOCK_BYTES;
        }
    }
    bytes.len()
}

/// Returns the number of control characters in `bytes` other than line ends and tabs.
fn count_control_chars(bytes: &[u8]) -> usize {
    let count_in = |part: &[u8]| part.iter().filter(|byte| is_control_char(**byte)).count();
    // Most groups of eight bytes have no byte below the space, and one comparison shows this.
    let (groups, rest) = bytes.as_chunks::<8>();
    let with_low_byte = groups.iter().filter(|group| has_byte_below_space(**group));
    with_low_byte.map(|group| count_in(group)).sum::<usize>() + count_in(rest)
}

fn is_control_char(byte: u8) -> bool {
    byte < b' ' && !matches!(byte, b'\n' | b'\r' | b'\t')
}

/// Returns true if one of the bytes in `group` is below the space, 0x20.
fn has_byte_below_space(group: [u8; 8]) -> bool {
    const TOP_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    const SPACES: u64 = u64::from_ne_bytes([b' '; 8]);
    let bytes = u64::from_ne_bytes(group);
    // With its top bit set, each byte is larger than a space, so no byte borrows from the next one.
    let at_least_space = ((bytes | TOP_BITS) - SPACES) | bytes;
    at_least_space & TOP_BITS != TOP_BITS
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_oneof, proptest};

    use super::{count_control_chars, is_control_char};

    proptest! {
        #[test]
        fn control_characters_are_counted_at_any_place(
            bytes in vec(prop_oneof![any::<u8>(), 0_u8..=0x21, 0x7e..=0xa0_u8], 0..100),
        ) {
            let expected = bytes.iter().filter(|byte| is_control_char(**byte)).count();
            assert_eq!(count_control_chars(&bytes), expected);
        }
    }
}
