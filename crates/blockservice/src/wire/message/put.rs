//! Encodes the body of a frame.

use chunks::NAME_MAX;

use super::{Message, TEXT_MAX};

impl Message {
    /// Appends the body.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let body = Body(out);
        match self {
            Self::Hello { .. }
            | Self::Challenge { .. }
            | Self::Prove { .. }
            | Self::Welcome { .. } => self.put_handshake(body),
            Self::Open { .. }
            | Self::Opened { .. }
            | Self::Read { .. }
            | Self::Chunk { .. }
            | Self::Prefetch { .. }
            | Self::Prefetched { .. } => self.put_read(body),
            Self::Get { .. }
            | Self::Boots { .. }
            | Self::BootList { .. }
            | Self::Put { .. }
            | Self::PutDone { .. } => self.put_boot(body),
            Self::Stats { numbers } => numbers.iter().fold(body, |body, n| body.u64(*n)).end(),
            Self::GoAway { within_ms } => body.u32(*within_ms).end(),
            Self::Error { code, text } => {
                let text = cut(text);
                let body = body.u16(*code as u16).count(text.len());
                body.bytes(text.as_bytes()).end();
            }
            Self::Start { .. }
            | Self::Started { .. }
            | Self::Streamed { .. }
            | Self::StreamEnd { .. }
            | Self::Skip { .. }
            | Self::Promote { .. }
            | Self::Resume { .. } => self.put_stream(body),
            Self::Cancel | Self::Piece | Self::Stat | Self::Index | Self::Plan | Self::Links => {}
        }
    }

    /// Appends the body of a message that begins a connection.
    fn put_handshake(&self, body: Body<'_>) {
        match self {
            Self::Hello {
                versions: (low, high),
                nonce,
                name,
            } => {
                let body = body.u16(*low).u16(*high).zeros::<4>();
                body.bytes(nonce).name(name).end();
            }
            Self::Challenge {
                version,
                method,
                nonce,
                proof,
            } => {
                let body = body.u16(*version).u8(*method as u8).zeros::<1>();
                body.bytes(nonce).bytes(proof).end();
            }
            Self::Prove { proof } => body.bytes(proof).end(),
            Self::Welcome { window, wants } => {
                body.u32(*window).u16(*wants).zeros::<2>().end();
            }
            _ => {}
        }
    }

    /// Appends the body of a message about chunks of a source.
    fn put_read(&self, body: Body<'_>) {
        match self {
            Self::Open { name } => body.name(name).end(),
            Self::Opened { handle, len, id } => {
                body.u32(*handle).zeros::<4>().u64(*len).bytes(&id.0).end();
            }
            Self::Read {
                handle,
                priority,
                form,
                deadline_ms,
                chunks,
            } => {
                let body = body.u32(*handle).u8(*priority as u8).u8(*form as u8);
                let body = body.count(chunks.len()).u32(*deadline_ms);
                chunks
                    .iter()
                    .fold(body, |body, chunk| body.u32(*chunk))
                    .end();
            }
            Self::Chunk {
                place,
                status,
                codec,
                raw_len,
            } => {
                let body = body.u16(*place).u8(*status as u8).u8(*codec);
                body.u32(*raw_len).end();
            }
            Self::Prefetch {
                handle,
                first,
                count,
            } => body.u32(*handle).u32(*first).u32(*count).end(),
            Self::Prefetched { present, absent } => body.u32(*present).u32(*absent).end(),
            _ => {}
        }
    }

    /// Appends the body of a message about a stream.
    fn put_stream(&self, body: Body<'_>) {
        match self {
            Self::Start { ask, have, name } => {
                let body = body.u8(*ask as u8).zeros::<3>();
                body.bytes(&have.0).name(name).end();
            }
            Self::Resume {
                have,
                plan,
                first,
                name,
            } => {
                let body = body.bytes(&have.0).bytes(&plan.0);
                body.u32(*first).zeros::<4>().name(name).end();
            }
            Self::Started {
                handle,
                codec,
                id,
                raw_len,
                packed_len,
                plan_len,
                plan_chunks,
                links_len,
            } => {
                let body = body.u32(*handle).u8(*codec).zeros::<3>().bytes(&id.0);
                let body = body.u64(*raw_len).u64(*packed_len).u64(*plan_len);
                body.u32(*plan_chunks).u32(*links_len).end();
            }
            Self::Streamed {
                chunk,
                status,
                codec,
                raw_len,
            } => {
                let body = body.u32(*chunk).u8(*status as u8).u8(*codec);
                body.zeros::<2>().u32(*raw_len).end();
            }
            Self::StreamEnd {
                sent,
                skipped,
                failed,
            } => body.u32(*sent).u32(*skipped).u32(*failed).end(),
            Self::Skip { chunks } | Self::Promote { chunks } => {
                let body = body.count(chunks.len()).zeros::<2>();
                chunks
                    .iter()
                    .fold(body, |body, chunk| body.u32(*chunk))
                    .end();
            }
            _ => {}
        }
    }

    /// Appends the body of a message about an index or a boot image.
    fn put_boot(&self, body: Body<'_>) {
        match self {
            Self::Get {
                handle,
                what,
                id,
                offset,
                len,
            } => {
                let body = body.u32(*handle).u8(*what as u8).zeros::<3>();
                body.bytes(&id.0).u64(*offset).u32(*len).zeros::<4>().end();
            }
            Self::Boots { handle } => body.u32(*handle).end(),
            Self::BootList { boots } => {
                let body = body.count(boots.len());
                let boots = boots.iter();
                boots
                    .fold(body, |body, boot| body.bytes(&boot.id.0).u64(boot.len))
                    .end();
            }
            Self::Put {
                handle,
                id,
                total,
                offset,
            } => {
                let body = body.u32(*handle).zeros::<4>().bytes(&id.0);
                body.u64(*total).u64(*offset).end();
            }
            Self::PutDone { whole } => body.u8(u8::from(*whole)).end(),
            _ => {}
        }
    }
}

/// A body that is being written, field by field.
struct Body<'a>(&'a mut Vec<u8>);

impl Body<'_> {
    fn bytes(self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(self, number: u8) -> Self {
        self.bytes(&[number])
    }

    fn u16(self, number: u16) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u64(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    /// Leaves so many bytes unused.
    fn zeros<const N: usize>(self) -> Self {
        self.bytes(&[0; N])
    }

    /// Counts what follows.
    fn count(self, count: usize) -> Self {
        self.u16(u16::try_from(count).unwrap_or(u16::MAX))
    }

    /// Names were bounded where they came from.
    fn name(self, name: &[u8]) -> Self {
        let name = &name[..name.len().min(NAME_MAX)];
        let body = self.u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
        body.bytes(name)
    }

    /// Ends the body.
    fn end(self) {}
}

/// Cuts a text to what an error may carry.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
