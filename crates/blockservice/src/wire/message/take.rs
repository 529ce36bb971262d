//! Decodes the body of a frame. Its bytes are untrusted.

use blocks::{Broken, ContentId, Input};
use chunks::BootEntry;

use super::{
    Ask, BOOTS_MAX, ErrorCode, Kind, Message, Method, Priority, ReadForm, SKIPS_MAX, Status,
    TEXT_MAX, WANTS_MAX, What,
};

impl Message {
    /// Reads a body.
    pub(crate) fn parse(kind: Kind, body: &[u8]) -> Result<Self, Broken> {
        let mut input = Input::new("body of a frame", body);
        let message = Self::take(kind, &mut input)?;
        input.end()?;
        Ok(message)
    }

    fn take(kind: Kind, input: &mut Input<'_>) -> Result<Self, Broken> {
        Ok(match kind {
            Kind::Hello => take_hello(input)?,
            Kind::Challenge => take_challenge(input)?,
            Kind::Prove => Self::Prove {
                proof: input.array()?,
            },
            Kind::Welcome => {
                let (window, wants) = (input.u32()?, input.u16()?);
                zero(input, 2)?;
                Self::Welcome { window, wants }
            }
            Kind::Open => Self::Open {
                name: take_name(input)?,
            },
            Kind::Opened => take_opened(input)?,
            Kind::Read => take_read(input)?,
            Kind::Chunk => Self::Chunk {
                place: input.u16()?,
                status: known(input, Status::from_number)?,
                codec: input.u8()?,
                raw_len: input.u32()?,
            },
            Kind::Cancel => Self::Cancel,
            Kind::Prefetch => Self::Prefetch {
                handle: input.u32()?,
                first: input.u32()?,
                count: input.u32()?,
            },
            Kind::Prefetched => Self::Prefetched {
                present: input.u32()?,
                absent: input.u32()?,
            },
            Kind::Get => take_get(input)?,
            Kind::Piece => Self::Piece,
            Kind::Boots => Self::Boots {
                handle: input.u32()?,
            },
            Kind::BootList => take_boots(input)?,
            Kind::Put => take_put(input)?,
            Kind::PutDone => match input.u8()? {
                0 => Self::PutDone { whole: false },
                1 => Self::PutDone { whole: true },
                _ => return Err(input.broken("there is no such outcome")),
            },
            Kind::Stat => Self::Stat,
            Kind::Stats => {
                let mut numbers = [0; 7];
                for number in &mut numbers {
                    *number = input.u64()?;
                }
                Self::Stats { numbers }
            }
            Kind::GoAway => Self::GoAway {
                within_ms: input.u32()?,
            },
            Kind::Error => take_error(input)?,
            Kind::Start => take_start(input)?,
            Kind::Resume => take_resume(input)?,
            Kind::Started => take_started(input)?,
            Kind::Index => Self::Index,
            Kind::Plan => Self::Plan,
            Kind::Links => Self::Links,
            Kind::Streamed => take_streamed(input)?,
            Kind::StreamEnd => Self::StreamEnd {
                sent: input.u32()?,
                skipped: input.u32()?,
                failed: input.u32()?,
            },
            Kind::Skip => Self::Skip {
                chunks: take_streamed_chunks(input)?,
            },
            Kind::Promote => Self::Promote {
                chunks: take_streamed_chunks(input)?,
            },
        })
    }
}

fn take_hello(input: &mut Input<'_>) -> Result<Message, Broken> {
    let versions = (input.u16()?, input.u16()?);
    zero(input, 4)?;
    Ok(Message::Hello {
        versions,
        nonce: input.array()?,
        name: take_name(input)?,
    })
}

fn take_challenge(input: &mut Input<'_>) -> Result<Message, Broken> {
    let version = input.u16()?;
    let method = known(input, Method::from_number)?;
    zero(input, 1)?;
    Ok(Message::Challenge {
        version,
        method,
        nonce: input.array()?,
        proof: input.array()?,
    })
}

fn take_opened(input: &mut Input<'_>) -> Result<Message, Broken> {
    let handle = input.u32()?;
    zero(input, 4)?;
    Ok(Message::Opened {
        handle,
        len: input.u64()?,
        id: take_id(input)?,
    })
}

fn take_put(input: &mut Input<'_>) -> Result<Message, Broken> {
    let handle = input.u32()?;
    zero(input, 4)?;
    Ok(Message::Put {
        handle,
        id: take_id(input)?,
        total: input.u64()?,
        offset: input.u64()?,
    })
}

fn take_read(input: &mut Input<'_>) -> Result<Message, Broken> {
    let handle = input.u32()?;
    let priority = known(input, Priority::from_number)?;
    let form = known(input, ReadForm::from_number)?;
    let count = usize::from(input.u16()?);
    let deadline_ms = input.u32()?;
    if count == 0 || count > WANTS_MAX {
        return Err(input.broken("a READ wants 1 to 64 chunks"));
    }
    Ok(Message::Read {
        handle,
        priority,
        form,
        deadline_ms,
        chunks: take_chunks(input, count)?,
    })
}

fn take_start(input: &mut Input<'_>) -> Result<Message, Broken> {
    let ask = known(input, Ask::from_number)?;
    zero(input, 3)?;
    Ok(Message::Start {
        ask,
        have: take_id(input)?,
        name: take_name(input)?,
    })
}

fn take_resume(input: &mut Input<'_>) -> Result<Message, Broken> {
    let (have, plan, first) = (take_id(input)?, take_id(input)?, input.u32()?);
    zero(input, 4)?;
    Ok(Message::Resume {
        have,
        plan,
        first,
        name: take_name(input)?,
    })
}

fn take_started(input: &mut Input<'_>) -> Result<Message, Broken> {
    let (handle, codec) = (input.u32()?, input.u8()?);
    zero(input, 3)?;
    Ok(Message::Started {
        handle,
        codec,
        id: take_id(input)?,
        raw_len: input.u64()?,
        packed_len: input.u64()?,
        plan_len: input.u64()?,
        plan_chunks: input.u32()?,
        links_len: input.u32()?,
    })
}

fn take_streamed(input: &mut Input<'_>) -> Result<Message, Broken> {
    let chunk = input.u32()?;
    let status = known(input, Status::from_number)?;
    let codec = input.u8()?;
    zero(input, 2)?;
    Ok(Message::Streamed {
        chunk,
        status,
        codec,
        raw_len: input.u32()?,
    })
}

/// Takes the chunks that a SKIP or PROMOTE names.
fn take_streamed_chunks(input: &mut Input<'_>) -> Result<Vec<u32>, Broken> {
    let count = usize::from(input.u16()?);
    zero(input, 2)?;
    if count == 0 || count > SKIPS_MAX {
        return Err(input.broken("a SKIP or PROMOTE names 1 to 4096 chunks"));
    }
    take_chunks(input, count)
}

fn take_chunks(input: &mut Input<'_>, count: usize) -> Result<Vec<u32>, Broken> {
    let chunks = input.records::<4>(count)?.iter();
    Ok(chunks.map(|chunk| u32::from_le_bytes(*chunk)).collect())
}

fn take_get(input: &mut Input<'_>) -> Result<Message, Broken> {
    let handle = input.u32()?;
    let what = known(input, What::from_number)?;
    zero(input, 3)?;
    let id = take_id(input)?;
    let (offset, len) = (input.u64()?, input.u32()?);
    zero(input, 4)?;
    Ok(Message::Get {
        handle,
        what,
        id,
        offset,
        len,
    })
}

fn take_boots(input: &mut Input<'_>) -> Result<Message, Broken> {
    let count = usize::from(input.u16()?);
    if count > BOOTS_MAX {
        return Err(input.broken("a source has too many boot images"));
    }
    let records = input.records::<40>(count)?;
    let boots = records.iter().map(|record| {
        let mut input = Input::new("list of boot images", record);
        Ok(BootEntry {
            id: take_id(&mut input)?,
            len: input.u64()?,
        })
    });
    let boots = boots.collect::<Result<_, Broken>>()?;
    Ok(Message::BootList { boots })
}

fn take_error(input: &mut Input<'_>) -> Result<Message, Broken> {
    let number = input.u16()?;
    let code = ErrorCode::from_number(number).ok_or(input.broken("there is no such error"))?;
    let len = usize::from(input.u16()?);
    if len > TEXT_MAX {
        return Err(input.broken("a text is too long"));
    }
    let text = str::from_utf8(input.take(len)?).map_err(|_| input.broken("a text is no text"))?;
    Ok(Message::Error {
        code,
        text: text.to_owned(),
    })
}

fn known<T>(input: &mut Input<'_>, from: impl Fn(u8) -> Option<T>) -> Result<T, Broken> {
    let number = input.u8()?;
    from(number).ok_or(input.broken("a number has no meaning"))
}

fn zero(input: &mut Input<'_>, len: usize) -> Result<(), Broken> {
    if input.take(len)?.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(input.broken("a reserved field is in use"))
}

fn take_name(input: &mut Input<'_>) -> Result<Vec<u8>, Broken> {
    let len = usize::from(input.u8()?);
    input.take(len).map(<[u8]>::to_vec)
}

fn take_id(input: &mut Input<'_>) -> Result<ContentId, Broken> {
    input.array().map(ContentId)
}
