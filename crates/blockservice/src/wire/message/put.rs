//! Laying out the body of a frame.

use chunks::NAME_MAX;

use super::{Message, TEXT_MAX};

impl Message {
    /// Appends the body.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello {
                versions: (low, high),
                nonce,
                name,
            } => {
                put(
                    out,
                    &[&low.to_le_bytes(), &high.to_le_bytes(), &[0; 4], nonce],
                );
                put_name(out, name);
            }
            Self::Challenge {
                version,
                method,
                nonce,
                proof,
            } => {
                put(
                    out,
                    &[&version.to_le_bytes(), &[*method as u8, 0], nonce, proof],
                );
            }
            Self::Prove { proof } => put(out, &[proof]),
            Self::Welcome { window, wants } => {
                put(out, &[&window.to_le_bytes(), &wants.to_le_bytes(), &[0; 2]]);
            }
            Self::Open { name } => put_name(out, name),
            Self::Opened { handle, len, id } => {
                put(
                    out,
                    &[&handle.to_le_bytes(), &[0; 4], &len.to_le_bytes(), &id.0],
                );
            }
            Self::Read {
                handle,
                priority,
                deadline_ms,
                chunks,
            } => {
                let count = count16(chunks.len());
                put(
                    out,
                    &[
                        &handle.to_le_bytes(),
                        &[*priority as u8, 0],
                        &count,
                        &deadline_ms.to_le_bytes(),
                    ],
                );
                chunks
                    .iter()
                    .for_each(|chunk| put(out, &[&chunk.to_le_bytes()]));
            }
            Self::Chunk {
                place,
                status,
                codec,
                raw_len,
            } => {
                put(
                    out,
                    &[
                        &place.to_le_bytes(),
                        &[*status as u8, *codec],
                        &raw_len.to_le_bytes(),
                    ],
                );
            }
            Self::Cancel | Self::Piece | Self::Stat => {}
            Self::Prefetch {
                handle,
                first,
                count,
            } => put32(out, &[*handle, *first, *count]),
            Self::Prefetched { present, absent } => put32(out, &[*present, *absent]),
            Self::Get {
                handle,
                what,
                id,
                offset,
                len,
            } => {
                put(
                    out,
                    &[&handle.to_le_bytes(), &[*what as u8, 0, 0, 0], &id.0],
                );
                put(out, &[&offset.to_le_bytes(), &len.to_le_bytes(), &[0; 4]]);
            }
            Self::Boots { handle } => put32(out, &[*handle]),
            Self::BootList { boots } => {
                put(out, &[&count16(boots.len())]);
                boots
                    .iter()
                    .for_each(|boot| put(out, &[&boot.id.0, &boot.len.to_le_bytes()]));
            }
            Self::Put {
                handle,
                id,
                total,
                offset,
            } => {
                put(
                    out,
                    &[
                        &handle.to_le_bytes(),
                        &[0; 4],
                        &id.0,
                        &total.to_le_bytes(),
                        &offset.to_le_bytes(),
                    ],
                );
            }
            Self::PutDone { whole } => out.push(u8::from(*whole)),
            Self::Stats { numbers } => numbers
                .iter()
                .for_each(|number| put(out, &[&number.to_le_bytes()])),
            Self::GoAway { within_ms } => put32(out, &[*within_ms]),
            Self::Error { code, text } => {
                let text = cut(text);
                put(
                    out,
                    &[
                        &(*code as u16).to_le_bytes(),
                        &count16(text.len()),
                        text.as_bytes(),
                    ],
                );
            }
        }
    }
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn put32(out: &mut Vec<u8>, numbers: &[u32]) {
    numbers
        .iter()
        .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// Names were bounded where they came from.
fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    let name = &name[..name.len().min(NAME_MAX)];
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name);
}

fn count16(count: usize) -> [u8; 2] {
    u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes()
}

/// Cuts a text to what an error may carry.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
