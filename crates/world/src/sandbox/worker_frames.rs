//! Messages between the server and a worker process: a length in four bytes, little-endian, and
//! that many bytes of content.

use std::io::{self, Read, Write};

/// The number of bytes that state the length of a message to or from a worker, before the message.
const LENGTH_BYTES: usize = 4;

/// Writes the length of `message`, and then `message`, to `stream`.
pub(crate) fn write_frame(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // One write wakes the reader once.
    stream.write_all(&[&length.to_le_bytes()[..], message].concat())
}

/// Reads the next message from `stream`. Returns `None` if the stream ends before the message.
///
/// # Errors
/// The stream ends within the message, or the message is longer than `bytes_max`. No memory is
/// allocated for a longer message.
pub(crate) fn read_frame(stream: &mut impl Read, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; LENGTH_BYTES];
    let begun = loop {
        match stream.read(&mut length) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if begun == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut length[begun..])?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > bytes_max {
        let message = format!("a message of {length} bytes is longer than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message)?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        let mut stream = Vec::new();
        for message in messages {
            write_frame(&mut stream, message).unwrap();
        }
        stream
    }

    #[test]
    fn messages_are_read_as_written() {
        let stream = framed(&[b"one", b"", b"two"]);
        let mut rest = &stream[..];
        for expected in [Some(&b"one"[..]), Some(b""), Some(b"two"), None] {
            assert_eq!(read_frame(&mut rest, 3).unwrap().as_deref(), expected);
        }
    }

    #[test]
    fn a_cut_message_is_an_error_and_an_absent_one_is_none() {
        let stream = framed(&[b"some text"]);
        assert!(read_frame(&mut &stream[..0], 100).unwrap().is_none());
        for length in 1..stream.len() {
            let err = read_frame(&mut &stream[..length], 100).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    #[test]
    fn an_oversized_message_is_refused_before_its_bytes_are_read() {
        let stream = framed(&[b"some text"]);
        for (stream, bytes_max) in [(&stream[..], 8), (&[0xff; 4][..], 1 << 20)] {
            let err = read_frame(&mut &*stream, bytes_max).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidData);
        }
        assert!(read_frame(&mut &stream[..], 9).unwrap().is_some());
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_as_a_longer_message(
            bytes in prop::collection::vec(any::<u8>(), 0..64), bytes_max in 0usize..64
        ) {
            if let Ok(Some(message)) = read_frame(&mut &bytes[..], bytes_max) {
                prop_assert!(message.len() <= bytes_max);
                prop_assert_eq!(&message[..], &bytes[4..4 + message.len()]);
            }
        }
    }
}
