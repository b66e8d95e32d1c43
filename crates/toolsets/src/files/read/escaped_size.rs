//! The size of a file's content as JSON text, where control characters take more bytes than in the
//! file.

/// The maximum size of a file's content as JSON, in bytes.
const ESCAPED_BYTES_MAX: usize = 20 << 20;
/// The maximum number of bytes that a character of one byte takes in JSON, for example `\u0001`.
const ESCAPED_CHAR_BYTES_MAX: usize = 6;
/// The number of bytes of a file whose control characters are counted in one step.
const BLOCK_BYTES: usize = 64 << 10;

/// Returns the length of a start of `bytes`, in whole blocks, that takes at most about 20 MiB in
/// JSON. Quotes, backslashes, tabs and line ends count as one byte.
pub(super) fn fitting_prefix_len(bytes: &[u8]) -> usize {
    if bytes.len() <= ESCAPED_BYTES_MAX / ESCAPED_CHAR_BYTES_MAX {
        return bytes.len();
    }
    let mut escaped = 0;
    for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        escaped += block.len() + (ESCAPED_CHAR_BYTES_MAX - 1) * count_control_chars(block);
        if escaped > ESCAPED_BYTES_MAX {
            return index * BLOCK_BYTES;
        }
    }
    bytes.len()
}

/// Returns the number of control characters in `bytes` other than line ends and tabs.
fn count_control_chars(bytes: &[u8]) -> usize {
    let is_control = |byte: u8| (byte < b' ') & (byte != b'\n') & (byte != b'\r') & (byte != b'\t');
    // Without branches, and with counts that fit into a byte, the compiler counts many bytes at
    // once.
    let count =
        |part: &[u8]| part.iter().fold(0, |count, &byte| count + u8::from(is_control(byte)));
    bytes.chunks(usize::from(u8::MAX)).map(|part| usize::from(count(part))).sum()
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, fitting_prefix_len};

    #[test]
    fn control_characters_fit_up_to_a_sixth_of_the_limit() {
        let sixth = (20 << 20) / 6;
        let bytes = vec![0; sixth + 1];
        assert_eq!(fitting_prefix_len(&bytes[..sixth]), sixth);
        assert_eq!(fitting_prefix_len(&bytes), sixth / BLOCK_BYTES * BLOCK_BYTES);
        assert_eq!(fitting_prefix_len(&vec![b'\n'; 10 << 20]), 10 << 20);
    }
}
