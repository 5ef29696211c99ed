//! The header fields of an answer that is not plain text.

use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::Selection;
use crate::payload::{MediaType, PayloadKey};

/// Says the type of what was selected of a payload of `size` bytes, if that is not plain text. Of an image, a file or sound, a
/// part has no type itself, and no browser shows any of it as a page of this origin.
pub(super) fn set_type(
    headers: &mut HeaderMap,
    key: PayloadKey,
    media: Option<MediaType>,
    size: usize,
    selected: &Selection,
) {
    if selected.is_json {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let (Some(media), Some(range)) = (media, &selected.range) else { return };
    let shown = if *range == (0..size) { media } else { MediaType::Bytes };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(shown.name()));
    let file = HeaderValue::try_from(format!("attachment; filename=\"{key}.{}\"", media.extension()));
    headers.extend(file.map(|file| (CONTENT_DISPOSITION, file)));
}
