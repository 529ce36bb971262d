#!/usr/bin/env python3
"""Boots a light guest from one mount and restores another from a second one, while the disk of the store is slow and the files of the
store are damaged: flipped bits, zeros, cuts, other content, removals. Looks for wrong bytes, failed reads, and readers that wait.

    scripts/slow-store.py DIRECTORY PROGRAMS SEED IOPS [both] [early] [node]

DIRECTORY is made, with a file system on a loop device; PROGRAMS has yolofs and bootimg. `both`: the sources are on that disk, too, and
so clones of the recorded ones; `early`: the damage begins before the mounts; `node`: the node serves. Needs root, QEMU, control groups
of version 1 with blkio, and .cache/images/light.tar. Ends with GOOD or BAD and the figures.
"""
import json, mmap, os, random, shutil, socket, subprocess, sys, threading, time

W, R, seed, iops = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
both, early, by_node = (word in sys.argv[5:] for word in ('both', 'early', 'node'))
random.seed(seed)
IMG, S, L = W + '/slow.img', W + '/slow', W + '/light'
if not os.path.exists(L):
    os.makedirs(L)
    archive = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../.cache/images/light.tar')
    subprocess.run(['tar', '-xf', archive, '-C', L], check=True)
env = dict(os.environ, YOLOFS_RUN_DIR=W + '/run', YOLOFS_STORE=S + '/store')
def sh(*a,**k): return subprocess.run(a,check=True,capture_output=True,text=True,env=env,**k).stdout
def machine():
    return ['qemu-system-x86_64','-nodefaults','-no-user-config','-accel','tcg,thread=multi,tb-size=32','-cpu','qemu64,+rdrand,-cx16','-machine','q35','-display','none','-no-reboot','-serial','stdio','-m','96','-kernel',L+'/vmlinuz','-initrd',L+'/initrd.img','-append','console=ttyS0 loglevel=1 nowatchdog no_timer_check panic=-1 mitigations=off']
def disk(f): return ['-drive','if=none,id=disk,format=raw,snapshot=on,cache=writeback,file='+f,'-device','virtio-blk-pci,drive=disk']
class Guest:
    def __init__(s,args):
        s.p=subprocess.Popen(args,stdin=subprocess.PIPE,stdout=subprocess.PIPE,stderr=subprocess.DEVNULL)
        s.lines=[]; s.c=threading.Condition()
        threading.Thread(target=s.rd,daemon=True).start()
    def rd(s):
        for l in s.p.stdout:
            with s.c: s.lines.append(l.decode(errors='replace').strip()); s.c.notify_all()
        with s.c: s.lines.append('EOF'); s.c.notify_all()
    def say(s,w,t=150):
        end=time.time()+t; n=0
        with s.c:
            while True:
                for i in range(n,len(s.lines)):
                    if w in s.lines[i]: s.lines[i],r='',s.lines[i].split(w,1)[1].strip(); return r
                    if s.lines[i]=='EOF': return None
                n=0
                left=end-time.time()
                if left<=0: return 'TIMEOUT'
                s.c.wait(left)
    def end(s): s.p.kill(); s.p.wait()
def setup():
    os.makedirs(S,exist_ok=True)
    sh('truncate','-s','600M',IMG); sh('mkfs.ext4','-q','-F','-E','lazy_itable_init=0,lazy_journal_init=0,nodiscard',IMG)
def attach():
    dev=sh('losetup','--find','--show','--direct-io=on',IMG).strip(); sh('mount','-o','noatime',dev,S); return dev
def detach(dev): 
    for i in range(100):
        if subprocess.run(['umount',S],capture_output=True).returncode==0: break
        time.sleep(0.1)
    else: print('BUSY', subprocess.run(['fuser','-vm',S],capture_output=True,text=True).stderr[-300:])
    sh('losetup','-d',dev)
first=not os.path.exists(W+'/src/vm.state')
if first:
    setup(); dev=attach()
    os.makedirs(W+'/src',exist_ok=True); os.makedirs(W+'/m1',exist_ok=True); os.makedirs(W+'/m2',exist_ok=True)
    shutil.copy(L+'/disk.raw',W+'/src/base.raw')
    mon=W+'/mon'
    g=Guest(machine()+disk(W+'/src/base.raw')+['-chardev','socket,id=c,server=on,wait=off,path='+mon,'-mon','chardev=c,mode=control'])
    open(W+'/sum','w').write(g.say('LIGHT-READY'))
    k=socket.socket(socket.AF_UNIX); k.connect(mon); f=k.makefile('rw')
    f.readline()
    for c in [{"execute":"qmp_capabilities"},{"execute":"migrate","arguments":{"uri":"exec:cat > %s/src/p && mv %s/src/p %s/src/vm.state"%(W,W,W)}}]:
        f.write(json.dumps(c)+'\n'); f.flush(); print(f.readline().strip())
    while not os.path.exists(W+'/src/vm.state'): time.sleep(0.2)
    g.end()
    print(sh(R+'/bootimg','record','--name','base','--until','line:LIGHT-READY',W+'/src/base.raw','--','sh','-c','exec '+' '.join("'%s'"%x if ' ' in x else x for x in machine())+' '+' '.join(disk('$YOLOFS_IMAGE'))))
    print(sh(R+'/bootimg','record','--name','state','--until','line:LIGHT-IDLE',W+'/src/vm.state','--','sh','-c','exec '+' '.join("'%s'"%x if ' ' in x else x for x in machine())+' '+' '.join(disk(W+'/src/base.raw'))+' -incoming "exec:cat $YOLOFS_IMAGE"'))
    sh('cp','-a',S+'/store',W+'/good')
    detach(dev)
SUM=open(W+'/sum').read()
dev=attach()
shutil.rmtree(S+'/store'); sh('cp','-a',W+'/good',S+'/store')
src=W+'/src'
if both:
    os.makedirs(S+'/src',exist_ok=True)
    for n in ('base.raw','vm.state'): shutil.copy(W+'/src/'+n,S+'/src/'+n)
    src=S+'/src'
sh('sync','-f',S); detach(dev); dev=attach()
num='%d:%d'%(os.major(os.stat(dev).st_rdev),os.minor(os.stat(dev).st_rdev))
G='/sys/fs/cgroup/blkio/vmslab'; os.makedirs(G,exist_ok=True)
open(G+'/blkio.throttle.read_iops_device','w').write('%s %d'%(num,iops))
def join(): open(G+'/cgroup.procs','w').write(str(os.getpid()))
bad=[]
t0=time.time()
env['YOLOFS_STATE_DIR']=W+'/state'
shutil.rmtree(W+'/state',ignore_errors=True)
node=None
if by_node:
    node=subprocess.Popen([R+'/yolofs','node'],env=env,preexec_fn=join,stderr=open(W+'/node.log','w'))
    while not os.path.exists(W+'/run/node.sock'): time.sleep(0.1)
def mnt(n,at):
    p=subprocess.run([R+'/yolofs','mount',*([] if by_node else ['--standalone']),src+'/'+n,at],env=env,capture_output=True,text=True,preexec_fn=join,timeout=120)
    if p.returncode: bad.append('mount %s: %s'%(n,p.stderr))
stop=False; did=[]
def victims():
    v=[]
    for d,_,fs in os.walk(S+'/store'):
        for f in fs:
            if d.endswith('segments') or d.endswith('images'): v.append(d+'/'+f)
    return v
def damage():
    r=random.Random(seed*7+1)
    while not stop:
        v=victims()
        if v:
            f=r.choice(sorted(v)); k=r.choice(['flip','flip','flip','zero','cut','grow','replace','unlink'])
            try:
                n=os.path.getsize(f)
                if k=='flip':
                    fd=os.open(f,os.O_RDWR)
                    for _ in range(r.randint(1,200)): 
                        o=r.randrange(max(n,1)); os.pwrite(fd,bytes([r.randrange(256)]),o)
                    os.close(fd)
                elif k=='zero':
                    fd=os.open(f,os.O_RDWR); o=r.randrange(max(n,1)); os.pwrite(fd,bytes(min(65536,n-o)),o); os.close(fd)
                elif k=='cut': os.truncate(f,r.randrange(max(n,1)))
                elif k=='grow': os.truncate(f,n+r.randrange(1<<20))
                elif k=='replace':
                    g=r.choice(sorted(v)); shutil.copy(g,S+'/x'); os.rename(S+'/x',f)
                elif k=='unlink' and r.random()<0.3: os.unlink(f)
                did.append(k)
            except OSError as e: did.append(str(e.errno))
        time.sleep(r.random()*0.3)
if early: threading.Thread(target=damage,daemon=True).start()
mnt('base.raw',W+'/m1'); mnt('vm.state',W+'/m2')
tm=time.time()-t0
lat=[0,'']
def probe(at,truth,k):
    r=random.Random(seed*13+k); T=open(truth,'rb').read(); n=len(T)
    flags=os.O_RDONLY|(os.O_DIRECT if k else 0)
    fd=os.open(at,flags)
    while not stop:
        o=r.randrange(n//4096)*4096; b=mmap.mmap(-1,4096*r.choice([1,4,16,32])); s=time.time()
        try: got=os.preadv(fd,[b],o)
        except OSError as e: bad.append('read %s %d: %s'%(at,o,e)); got=None
        d=time.time()-s
        if d>lat[0]: lat[0]=d; lat[1]='%s at %d'%(at,o)
        if got is not None and b[:got]!=T[o:o+got]: bad.append('WRONG BYTES %s %d'%(at,o))
        if got is not None and got!=min(len(b),n-o): bad.append('SHORT %s %d %d'%(at,o,got))
        time.sleep(0.02)
    os.close(fd)
ts=[] if early else [threading.Thread(target=damage,daemon=True)]
for k in (0,1):
    ts.append(threading.Thread(target=probe,args=(W+'/m1/base.raw',W+'/src/base.raw',k),daemon=True))
    ts.append(threading.Thread(target=probe,args=(W+'/m2/vm.state',W+'/src/vm.state',k),daemon=True))
for t in ts: t.start()
t1=time.time()
g1=Guest(machine()+disk(W+'/m1/base.raw'))
g2=Guest(machine()+disk(W+'/src/base.raw')+['-incoming','exec:cat %s/m2/vm.state'%W])
a=g1.say('LIGHT-READY'); ta=time.time()-t1
b=g2.say('LIGHT-IDLE'); tb=time.time()-t1
g2.p.stdin.write(b'again\n'); g2.p.stdin.flush(); c=g2.say('LIGHT-ANSWER'); tc=time.time()-t1
stop=True
for t in ts: t.join(120); 
if any(t.is_alive() for t in ts): bad.append('HANG: a reader is stuck')
if a!=SUM: bad.append('guest 1: %r %s'%(a,g1.lines[-3:]))
if c!=SUM: bad.append('guest 2: %r %r %s'%(b,c,g2.lines[-3:]))
g1.end(); g2.end()
t2=time.time()
for m,n in (('m1','base.raw'),('m2','vm.state')):
    try:
        if open(W+'/'+m+'/'+n,'rb').read()!=open(W+'/src/'+n,'rb').read(): bad.append('WRONG BYTES at the end: '+n)
    except OSError as e: bad.append('end %s: %s'%(n,e))
    try:
        st=json.loads(sh(R+'/yolofs','status','--json',W+'/'+m,timeout=30))
        st=st[0] if isinstance(st,list) else st
        s=st['served']; print(n,{k:s[k] for k in s if k in('fallthrough_bytes','errors','damaged','boot_bytes')}, st.get('warnings'))
    except Exception as e: bad.append('status %s'%e)
te=time.time()-t2
for m in ('m1','m2'):
    p=subprocess.run([R+'/yolofs','umount',W+'/'+m],env=env,capture_output=True,text=True,timeout=60)
    if p.returncode: bad.append('umount: '+p.stderr)
if node: node.terminate(); node.wait(30)
detach(dev)
print('seed',seed,'iops',iops,*sys.argv[5:],'mounts %.1f ready %.1f restored %.1f answer %.1f readall %.1f max read %.2f %s'%(tm,ta,tb,tc,te,lat[0],lat[1]),'damages',len(did))
print('BAD' if bad else 'GOOD',len(bad),bad[:12])
