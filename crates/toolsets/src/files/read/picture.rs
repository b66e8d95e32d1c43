//! Pictures, which a read shows instead of their bytes.

use toolgate_contract::{ToolError, ToolFault};
use toolgate_world::root::quoted_path;

use super::content::FileContent;

/// Largest picture that is shown, in bytes. Model APIs refuse larger ones.
const PICTURE_BYTES_MAX: u64 = 3 << 20;
/// Formats that model APIs accept: their first bytes and media type.
const FORMATS: [(&[u8], &str); 4] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
];
/// Number of bytes that identify a format.
const HEAD_BYTES: u64 = 12;

/// Returns the media type of `content` if it is a picture and `is_wanted`.
///
/// # Errors
/// Fails if the picture is too large to show.
pub(super) fn media_type(
    content: &FileContent<'_>,
    is_wanted: bool,
) -> Result<Option<&'static str>, ToolError> {
    if !is_wanted || content.size() < HEAD_BYTES {
        return Ok(None);
    }
    let Some(media_type) = format_of(&content.read(0, HEAD_BYTES)?) else { return Ok(None) };
    if content.size() > PICTURE_BYTES_MAX {
        let path = quoted_path(content.file.path());
        let message = format!(
            "the picture {path} has {} bytes, and at most {PICTURE_BYTES_MAX} can be shown; scale \
             it down first, or read it with encoding base64",
            content.size()
        );
        return Err(ToolError::new(ToolFault::TooLarge, message));
    }
    Ok(Some(media_type))
}

/// Returns the media type of a picture that begins with `head`.
fn format_of(head: &[u8]) -> Option<&'static str> {
    let (_, media_type) = FORMATS.iter().find(|(start, _)| head.starts_with(start))?;
    // Other RIFF files are sounds.
    (*media_type != "image/webp" || head[8..].starts_with(b"WEBP")).then_some(*media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_recognized_by_its_first_bytes() {
        assert_eq!(format_of(b"\x89PNG\r\n\x1a\n\0\0\0\r"), Some("image/png"));
        assert_eq!(format_of(b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01"), Some("image/jpeg"));
        assert_eq!(format_of(b"GIF89a\x01\0\x01\0\0\0"), Some("image/gif"));
        assert_eq!(format_of(b"RIFF\x24\0\0\0WEBP"), Some("image/webp"));
        assert_eq!(format_of(b"RIFF\x24\0\0\0WAVE"), None);
        assert_eq!(format_of(b"fn main() {}"), None);
    }
}
