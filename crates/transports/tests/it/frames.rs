//! Tests of clients that break the rules of WebSocket frames.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use toolgate_budget::InputMemoryBudget;
use toolgate_transports::http::HttpServerLimits;

use crate::served::{ReceivedCloseFrame, TestTransportServer, bounds, echo, within_timeout};

const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const LAST: u8 = 0x80;

/// Returns a WebSocket frame with the first byte `first`, masked with zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = header_of(first, payload.len());
    frame.extend(payload);
    frame
}

/// Returns the header of a WebSocket frame with the first byte `first`, for a payload of `length`
/// bytes.
fn header_of(first: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![first];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length), _) if length < 126 => frame.push(0x80 | length),
        (_, Ok(length)) => {
            frame.push(0x80 | 126);
            frame.extend(length.to_be_bytes());
        }
        _ => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame
}

/// Sends `bytes` as a WebSocket client, and returns the close frame of the server. Checks that
/// another client stays connected.
async fn close_received(bytes: &[u8]) -> ReceivedCloseFrame {
    let server = TestTransportServer::talking(bounds(), echo).await;
    let mut other = server.connect().await;
    let mut client = server.connect_raw().await;
    client.write_all(bytes).await.expect("sent");
    let mut last = Vec::new();
    within_timeout(client.read_to_end(&mut last)).await.expect("an end");
    other.send("hello").await;
    assert_eq!(other.receive().await, "hello");
    match last.as_slice() {
        [0x88, length, high, low, reason @ ..] if *length as usize == reason.len() + 2 => {
            ReceivedCloseFrame {
                code: u16::from_be_bytes([*high, *low]),
                reason: String::from_utf8(reason.to_vec()).expect("text"),
            }
        }
        other => panic!("this is not a close frame: {other:?}"),
    }
}

async fn code(bytes: &[u8]) -> u16 {
    close_received(bytes).await.code
}

#[tokio::test]
async fn an_unmasked_frame_is_a_protocol_error() {
    assert_eq!(code(b"\x81\x02hi").await, 1002);
}

#[tokio::test]
async fn reserved_bits_and_opcodes_are_a_protocol_error() {
    for bits in [0x40, 0x20, 0x10] {
        assert_eq!(code(&frame(LAST | bits | TEXT, b"hi")).await, 1002, "{bits}");
    }
    for kind in [0x3, 0x7, 0xB, 0xF] {
        assert_eq!(code(&frame(LAST | kind, b"hi")).await, 1002, "{kind}");
    }
}

#[tokio::test]
async fn a_long_or_fragmented_control_frame_is_a_protocol_error() {
    assert_eq!(code(&frame(LAST | PING, &[b'x'; 126])).await, 1002);
    assert_eq!(code(&frame(PING, b"hi")).await, 1002);
}

#[tokio::test]
async fn a_misplaced_fragment_is_a_protocol_error() {
    assert_eq!(code(&frame(LAST, b"hi")).await, 1002);
    let twice = [frame(TEXT, b"h"), frame(LAST | TEXT, b"i")].concat();
    assert_eq!(code(&twice).await, 1002);
}

#[tokio::test]
async fn an_invalid_close_frame_is_a_protocol_error() {
    assert_eq!(code(&frame(LAST | CLOSE, b"\x03")).await, 1002);
    for reserved in [0u16, 999, 1005, 1006, 1015] {
        let close = frame(LAST | CLOSE, &reserved.to_be_bytes());
        assert_eq!(code(&close).await, 1002, "{reserved}");
    }
}

#[tokio::test]
async fn a_text_that_is_not_utf_8_is_refused() {
    let full = frame(LAST | TEXT, b"\xc3(");
    let cut = frame(LAST | TEXT, b"\xc3");
    let started = frame(TEXT, b"\xff");
    let pieces = [frame(TEXT, b"\xc3"), frame(LAST, b"(")].concat();
    for bytes in [full, cut, started, pieces] {
        assert_eq!(code(&bytes).await, 1007, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_by_its_declared_length() {
    let received = close_received(&header_of(LAST | BINARY, 1 << 40)).await;
    assert_eq!(received.code, 1009);
    assert_eq!(received.reason, "a message may have at most 65536 bytes");
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_while_it_arrives() {
    assert_eq!(code(&frame(LAST | TEXT, &[b'x'; 200_000])).await, 1009);
    let pieces = [frame(TEXT, &[b'x'; 40_000]), frame(0, &[b'x'; 40_000])].concat();
    assert_eq!(code(&pieces).await, 1009);
}

#[tokio::test]
async fn unfinished_messages_of_all_sockets_share_one_memory() {
    let message_bytes = 1 << 20;
    // There is room for two messages, and for one and a half of one client.
    let input_memory = InputMemoryBudget::new(message_bytes / 4);
    let bounds = HttpServerLimits { body_bytes_max: message_bytes, input_memory, ..bounds() };
    let server = TestTransportServer::talking(bounds, echo).await;
    let mut frame = header_of(LAST | TEXT, message_bytes);
    frame.resize(frame.len() + message_bytes - 1, b'a');
    let mut first = server.connect_raw().await;
    first.write_all(&frame).await.expect("sent");
    let mut second = server.connect_raw().await;
    second.write_all(&frame).await.expect("sent");
    let mut close = [0; 4];
    within_timeout(first.read_exact(&mut close)).await.expect("a close frame");
    assert_eq!((close[0], u16::from_be_bytes([close[2], close[3]])), (0x88, 1013));
    second.write_all(b"a").await.expect("sent");
    let mut echoed = [0; 2];
    within_timeout(second.read_exact(&mut echoed)).await.expect("an echo");
    assert_eq!(echoed[0] & 0x0f, 1);
}
