//! Reads pictures, so that `files.read` shows them instead of their bytes. Large pictures are
//! scaled down.

use std::io::Cursor;
use std::sync::Mutex;

use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{ToolError, ToolErrorKind, lock_mutex};
use toolgate_world::root::quoted_path;

use super::content::OpenFileContent;

/// The maximum size of a picture that is shown, in bytes. Model APIs refuse larger pictures.
const PICTURE_BYTES_MAX: usize = 3 << 20;
/// The longest edge of a picture that is shown unchanged, in pixels. Model APIs refuse longer edges
/// in conversations with many pictures.
const EDGE_MAX: u32 = 2000;
/// The longest edge of a picture that was scaled down, in pixels. Many models do not use a higher
/// resolution.
const SCALED_EDGE: u32 = 1568;
/// The maximum size of a picture that can be scaled down, in bytes.
const SOURCE_BYTES_MAX: u64 = 32 << 20;
/// The maximum memory for the pixels of a picture, in bytes.
const PIXEL_BYTES_MAX: u64 = 192 << 20;
/// The JPEG quality of a picture that is compressed with loss, from 1 to 100.
const JPEG_QUALITY: u8 = 85;
/// The first bytes of each picture format that model APIs accept, with the format.
const FORMATS: [(&[u8], ImageFormat); 4] = [
    (b"\x89PNG\r\n\x1a\n", ImageFormat::Png),
    (b"\xff\xd8\xff", ImageFormat::Jpeg),
    (b"GIF8", ImageFormat::Gif),
    (b"RIFF", ImageFormat::WebP),
];
/// The number of bytes at the start of a file that are read to identify the format of a picture.
const HEAD_BYTES: u64 = 12;

/// Lock that allows only one picture to be scaled at a time, because the pixels of a picture take
/// much more memory than its file.
static SCALING: Mutex<()> = Mutex::new(());

/// A picture that `files.read` shows.
#[derive(Debug)]
pub(super) struct ShownPicture {
    /// The content of the picture file, or of the scaled picture.
    pub(super) bytes: Vec<u8>,
    /// The media type of `bytes`, such as `image/png`.
    pub(super) media_type: &'static str,
    /// The original size of the picture, if `bytes` contain a scaled picture.
    pub(super) scaled_from: Option<PictureSize>,
    format: ImageFormat,
}

/// The size of a picture in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct PictureSize {
    /// Width in pixels.
    pub(super) width: u32,
    /// Height in pixels.
    pub(super) height: u32,
}

/// Reads `content` as a picture. Returns `None` if the file is not a picture, or if `is_wanted` is
/// false.
///
/// # Errors
/// Fails if the picture is too large to be scaled down.
pub(super) fn read_picture(
    content: &OpenFileContent<'_>,
    is_wanted: bool,
) -> Result<Option<ShownPicture>, ToolError> {
    if !is_wanted || content.size() < HEAD_BYTES {
        return Ok(None);
    }
    let Some(format) = format_of(&content.read(0, HEAD_BYTES)?) else { return Ok(None) };
    if content.size() > SOURCE_BYTES_MAX {
        let reason = format!("only up to {SOURCE_BYTES_MAX} bytes are scaled down");
        return Err(too_large(content.file.path(), content.size(), &reason));
    }
    let bytes = content.read(0, content.size())?;
    Ok(Some(ShownPicture { bytes, media_type: format.to_mime_type(), scaled_from: None, format }))
}

/// Returns `picture`, which is the content of the file `path`, scaled down if it is too large to
/// show.
pub(super) fn fit(picture: ShownPicture, path: &str) -> Result<ShownPicture, ToolError> {
    if !picture.is_large() {
        return Ok(picture);
    }
    let bytes = picture.bytes.len() as u64;
    picture.scale().map_err(|reason| too_large(path, bytes, &reason))
}

impl ShownPicture {
    /// Returns true if the picture must be scaled down before it can be shown.
    pub(super) fn is_large(&self) -> bool {
        let is_long = |size: PictureSize| size.width.max(size.height) > EDGE_MAX;
        // A picture without a readable size is shown if it is small. Its reader may know more.
        self.bytes.len() > PICTURE_BYTES_MAX || self.size().is_some_and(is_long)
    }

    fn size(&self) -> Option<PictureSize> {
        let (width, height) = self.reader().into_dimensions().ok()?;
        Some(PictureSize { width, height })
    }

    fn reader(&self) -> ImageReader<Cursor<&[u8]>> {
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(PIXEL_BYTES_MAX);
        let mut reader = ImageReader::with_format(Cursor::new(&self.bytes[..]), self.format);
        reader.limits(limits);
        reader
    }

    /// Scales the picture down, or returns the reason why that is impossible.
    fn scale(&self) -> Result<Self, String> {
        let _one_at_a_time = lock_mutex(&SCALING);
        let reason = |error: ImageError| error.to_string();
        let mut decoder = self.reader().into_decoder().map_err(reason)?;
        if decoder.total_bytes() > PIXEL_BYTES_MAX {
            return Err(format!("the picture's pixels need more than {PIXEL_BYTES_MAX} bytes"));
        }
        let (width, height) = decoder.dimensions();
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let whole = DynamicImage::from_decoder(decoder).map_err(reason)?;
        // A picture can be large in bytes only. Enlarging it would not help.
        let edge = SCALED_EDGE.min(width.max(height));
        let mut scaled = whole.thumbnail(edge, edge);
        scaled.apply_orientation(orientation);
        let (format, bytes) = encode(&scaled, self.format).map_err(reason)?;
        if bytes.len() > PICTURE_BYTES_MAX {
            return Err(format!("the picture still has {} bytes after scaling", bytes.len()));
        }
        let scaled_from = Some(PictureSize { width, height });
        Ok(Self { bytes, media_type: format.to_mime_type(), scaled_from, format })
    }
}

/// Compresses `image` without loss if the original is a PNG or has transparency, unless the result
/// is too large. Otherwise, compresses with loss. Returns the format and the compressed bytes.
fn encode(image: &DynamicImage, from: ImageFormat) -> Result<(ImageFormat, Vec<u8>), ImageError> {
    if from == ImageFormat::Png || image.color().has_alpha() {
        let mut png = Cursor::new(Vec::new());
        image.write_to(&mut png, ImageFormat::Png)?;
        if png.get_ref().len() <= PICTURE_BYTES_MAX {
            return Ok((ImageFormat::Png, png.into_inner()));
        }
    }
    let mut jpeg = Vec::new();
    JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY).encode_image(&image.to_rgb8())?;
    Ok((ImageFormat::Jpeg, jpeg))
}

fn too_large(path: &str, bytes: u64, reason: &str) -> ToolError {
    let message = format!(
        "the picture {} is too large to show ({bytes} bytes), and was not scaled down: {reason}; \
         scale it down with a program, or read it with encoding base64",
        quoted_path(path)
    );
    ToolError::new(ToolErrorKind::TooLarge, message)
}

/// Returns the format of a picture file whose first bytes are `head`. Returns `None` if they are no
/// supported picture.
fn format_of(head: &[u8]) -> Option<ImageFormat> {
    let (_, format) = FORMATS.iter().find(|(start, _)| head.starts_with(start))?;
    // Other RIFF files are sounds.
    (*format != ImageFormat::WebP || head[8..].starts_with(b"WEBP")).then_some(*format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u32, height: u32, format: ImageFormat) -> ShownPicture {
        let mut bytes = Cursor::new(Vec::new());
        let image = DynamicImage::new_rgb8(width, height);
        image.write_to(&mut bytes, format).expect("it is encoded");
        let bytes = bytes.into_inner();
        ShownPicture { bytes, media_type: format.to_mime_type(), scaled_from: None, format }
    }

    #[test]
    fn a_picture_is_recognized_by_its_first_bytes() {
        assert_eq!(format_of(b"\x89PNG\r\n\x1a\n\0\0\0\r"), Some(ImageFormat::Png));
        assert_eq!(format_of(b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01"), Some(ImageFormat::Jpeg));
        assert_eq!(format_of(b"GIF89a\x01\0\x01\0\0\0"), Some(ImageFormat::Gif));
        assert_eq!(format_of(b"RIFF\x24\0\0\0WEBP"), Some(ImageFormat::WebP));
        assert_eq!(format_of(b"RIFF\x24\0\0\0WAVE"), None);
        assert_eq!(format_of(b"fn main() {}"), None);
    }

    #[test]
    fn a_picture_with_a_long_edge_is_scaled_down() {
        for format in [ImageFormat::Png, ImageFormat::Jpeg] {
            let shown = fit(picture(4000, 20, format), "p").expect("it is scaled");
            assert_eq!(shown.size(), Some(PictureSize { width: 1568, height: 8 }));
            assert_eq!(shown.scaled_from, Some(PictureSize { width: 4000, height: 20 }));
            assert_eq!((shown.format, shown.media_type), (format, format.to_mime_type()));
        }
    }

    #[test]
    fn a_small_picture_is_shown_unchanged() {
        let small = picture(2000, 10, ImageFormat::Png);
        let bytes = small.bytes.clone();
        let shown = fit(small, "p").expect("it is shown");
        assert_eq!((shown.bytes, shown.scaled_from), (bytes, None));
    }

    #[test]
    fn a_large_picture_that_cannot_be_decoded_is_refused() {
        for format in [ImageFormat::Png, ImageFormat::Gif] {
            let bytes = vec![0; PICTURE_BYTES_MAX + 1];
            let broken = ShownPicture {
                bytes,
                media_type: format.to_mime_type(),
                scaled_from: None,
                format,
            };
            let refusal = fit(broken, "a/p.png").expect_err("it is refused");
            assert!(refusal.message.contains("`a/p.png` is too large"), "{}", refusal.message);
        }
    }
}
