//! What a port takes from a namespace in which others have rights.
//!
//! The network namespace of a Zygote's child belongs to the Zygote's user namespace: a package in the Zygote can change
//! addresses and routes there, send packets of its own making, and keep these rights. So the machine's end of the device
//! takes nothing but what any sandbox can send: frames of IPv4 and ARP, from its own hardware address and its own address,
//! none of them to link-local addresses. A program of the kernel decides, before the bridge sees a frame.

#![expect(
    clippy::big_endian_bytes,
    reason = "packets are in the order of the network"
)]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rawio::bpf::{self, Kind, instruction};

use super::subnet::{LINK_LOCAL, hardware_address};

/// Operations: those of loading find their value in the packet, whose beginning is the Ethernet header.
const COPY: u8 = 0xbf;
const LOAD_HALF: u8 = 0x28;
const LOAD_WORD: u8 = 0x20;
const AND: u8 = 0x54;
const SET: u8 = 0xb7;
const IF_EQUAL: u8 = 0x16;
const IF_DIFFERENT: u8 = 0x56;
const END: u8 = 0x95;

/// Where loading expects the packet.
const PACKET: u8 = 6;

/// Types of frames.
const IPV4: u32 = 0x0800;
const ARP: u32 = 0x0806;

/// `TC_ACT_OK` and `TC_ACT_SHOT`.
const TAKE: u32 = 0;
const DROP: u32 = 2;

/// Loads the program for the port of an address. A frame that is too short to be looked at is taken: it ends where its
/// protocol is read.
pub(super) fn program(address: Ipv4Addr) -> io::Result<OwnedFd> {
    bpf::load(Kind::Packets, &instructions(address))
}

/// A program whose refusals all lead to its end.
#[derive(Default)]
struct Code {
    instructions: Vec<u64>,
    refusals: Vec<usize>,
}

impl Code {
    fn push(&mut self, code: u8, value: u32) {
        self.instructions.push(instruction(code, 0, 0, 0, value));
    }

    /// Refuses the packet if the loaded value meets a test.
    fn refuse(&mut self, test: u8, value: u32) {
        self.refusals.push(self.instructions.len());
        self.push(test, value);
    }

    /// Refuses the packet unless it has these six bytes at a place.
    fn expect_hardware_address(&mut self, at: u32, [a, b, c, d, e, f]: [u8; 6]) {
        self.push(LOAD_HALF, at);
        self.refuse(IF_DIFFERENT, u16::from_be_bytes([a, b]).into());
        self.push(LOAD_WORD, at + 2);
        self.refuse(IF_DIFFERENT, u32::from_be_bytes([c, d, e, f]));
    }

    fn expect_address(&mut self, at: u32, address: Ipv4Addr) {
        self.push(LOAD_WORD, at);
        self.refuse(IF_DIFFERENT, address.to_bits());
    }

    fn end(&mut self, decision: u32) {
        self.push(SET, decision);
        self.push(END, 0);
    }

    /// Sets how far a jump leads: to what comes next.
    fn lead_here(&mut self, from: usize) {
        let over = self.instructions.len() - from - 1;
        self.instructions[from] |= (over as u64 & 0xffff) << 16;
    }
}

fn instructions(address: Ipv4Addr) -> Vec<u64> {
    let hardware = hardware_address(address);
    let mut code = Code::default();
    code.instructions.push(instruction(COPY, PACKET, 1, 0, 0));
    code.expect_hardware_address(6, hardware);
    code.push(LOAD_HALF, 12);
    let to_arp = code.instructions.len();
    code.push(IF_EQUAL, ARP);
    code.refuse(IF_DIFFERENT, IPV4);
    // The header of IPv4 begins at 14; its addresses are at 12 and 16 of it.
    code.expect_address(26, address);
    code.push(LOAD_WORD, 30);
    let (network, prefix) = LINK_LOCAL;
    code.push(AND, u32::MAX << (32 - u32::from(prefix)));
    code.refuse(IF_EQUAL, network.to_bits());
    code.end(TAKE);
    code.lead_here(to_arp);
    // Who asks or answers, in ARP's header of 14 bytes before the one who is asked.
    code.expect_hardware_address(22, hardware);
    code.expect_address(28, address);
    code.end(TAKE);
    for refusal in std::mem::take(&mut code.refusals) {
        code.lead_here(refusal);
    }
    code.end(DROP);
    code.instructions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does what the kernel does with a frame.
    fn decision(code: &[u64], frame: &[u8]) -> u32 {
        let (mut at, mut value) = (0, 0_u32);
        loop {
            let [op, _, over, over_too, rest @ ..] = code[at].to_le_bytes();
            let operand = u32::from_le_bytes(rest);
            let place = operand as usize;
            let over = usize::from(u16::from_le_bytes([over, over_too]));
            at += 1;
            match op {
                COPY => {}
                LOAD_HALF => match frame.get(place..place + 2) {
                    Some(half) => value = u16::from_be_bytes(half.try_into().unwrap()).into(),
                    None => return 0,
                },
                LOAD_WORD => match frame.get(place..place + 4) {
                    Some(word) => value = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return 0,
                },
                AND => value &= operand,
                SET => value = operand,
                IF_EQUAL if value == operand => at += over,
                IF_DIFFERENT if value != operand => at += over,
                IF_EQUAL | IF_DIFFERENT => {}
                END => return value,
                other => panic!("{other:x}"),
            }
        }
    }

    fn frame(hardware: [u8; 6], kind: u32, payload: &[&[u8]]) -> Vec<u8> {
        let kind = u16::try_from(kind).unwrap().to_be_bytes();
        let mut frame = [&[0xff; 6], &hardware[..], &kind].concat();
        frame.extend(payload.concat());
        frame
    }

    #[test]
    fn only_what_is_a_sandboxs_own_is_taken() {
        let (own, other) = (
            Ipv4Addr::new(192, 168, 3, 200),
            Ipv4Addr::new(192, 168, 3, 201),
        );
        let code = instructions(own);
        let mac = hardware_address;
        let ip = |from: Ipv4Addr, to: Ipv4Addr| {
            [
                [0; 12].to_vec(),
                from.octets().to_vec(),
                to.octets().to_vec(),
            ]
            .concat()
        };
        let arp = |hardware: [u8; 6], from: Ipv4Addr| {
            [
                vec![0; 8],
                hardware.to_vec(),
                from.octets().to_vec(),
                vec![0; 10],
            ]
            .concat()
        };
        let cases = [
            (TAKE, frame(mac(own), IPV4, &[&ip(own, other)])),
            (DROP, frame(mac(own), IPV4, &[&ip(other, own)])),
            (DROP, frame(mac(other), IPV4, &[&ip(own, other)])),
            (
                DROP,
                frame(
                    mac(own),
                    IPV4,
                    &[&ip(own, Ipv4Addr::new(169, 254, 169, 254))],
                ),
            ),
            (
                TAKE,
                frame(mac(own), IPV4, &[&ip(own, Ipv4Addr::new(169, 253, 0, 1))]),
            ),
            (TAKE, frame(mac(own), ARP, &[&arp(mac(own), own)])),
            (DROP, frame(mac(own), ARP, &[&arp(mac(other), own)])),
            (DROP, frame(mac(own), ARP, &[&arp(mac(own), other)])),
            (DROP, frame(mac(own), 0x86dd, &[&[0; 40]])),
            (DROP, frame(mac(own), 0x8100, &[&ip(own, other)])),
            (DROP, frame(mac(own), 0x0026, &[&[0x42; 38]])),
        ];
        for (number, (expected, frame)) in cases.iter().enumerate() {
            assert_eq!(decision(&code, frame), *expected, "case {number}");
        }
    }
}
