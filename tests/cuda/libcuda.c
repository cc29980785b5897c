// A libcuda.so.1 that answers and does nothing but copy: it shows how cuda-bindings passes on what quantkit/cuda/driver.py
// gives, down to the C calls. Each function returns an error where an argument is not what the driver would take.
#include <stdio.h>
#include <string.h>
#include <dlfcn.h>
#include <stdlib.h>
typedef unsigned long long u64;
#define F(name, ...) int name(__VA_ARGS__)
F(cuInit, unsigned f){return 0;}
F(cuDriverGetVersion, int*v){*v=13000;return 0;}
F(cuDeviceGetCount,int*c){*c=1;return 0;}
F(cuDeviceGet,int*d,int i){*d=i;return 0;}
F(cuDeviceGetName,char*n,int l,int d){snprintf(n,l,"Stub");return 0;}
F(cuDeviceGetUuid_v2,char*u,int d){memcpy(u,"0123456789abcdef",16);return 0;}
F(cuDeviceGetAttribute,int*v,int a,int d){*v = a==75?9:a==76?0:a==16?132:1;return 0;}
F(cuDevicePrimaryCtxRetain,void**c,int d){*c=(void*)0x77;return 0;}
F(cuCtxPushCurrent_v2,void*c){return c==(void*)0x77?0:201;}
F(cuCtxPopCurrent_v2,void**c){*c=(void*)0x77;return 0;}
F(cuDeviceGetDefaultMemPool,void**p,int d){*p=(void*)0x88;return 0;}
F(cuMemPoolSetAttribute,void*p,int a,void*v){return p==(void*)0x88&&a==4&&*(u64*)v==(1ull<<62)?0:1;}
F(cuMemAllocAsync,u64*p,size_t n,void*s){*p=(u64)malloc(n);return s==(void*)1||s==(void*)0x99?0:400;}
F(cuMemFreeAsync,u64 p,void*s){free((void*)p);return 0;}
F(cuMemAlloc_v2,u64*p,size_t n){*p=(u64)malloc(n);return n>(1ull<<40)?2:0;}
F(cuMemFree_v2,u64 p){free((void*)p);return 0;}
F(cuMemGetInfo_v2,size_t*f,size_t*t){*f=1000;*t=2000;return 0;}
F(cuMemHostAlloc,void**p,size_t n,unsigned f){*p=malloc(n);return 0;}
F(cuMemcpyAsync,u64 d,u64 s,size_t n,void*st){memcpy((void*)d,(void*)s,n);return st==(void*)1?0:400;}
F(cuMemsetD8Async,u64 d,unsigned char v,size_t n,void*st){memset((void*)d,v,n);return 0;}
F(cuStreamCreate,void**s,unsigned f){*s=(void*)0x99;return f==1?0:1;}
F(cuStreamDestroy_v2,void*s){return s==(void*)0x99?0:400;}
F(cuStreamSynchronize,void*s){return 0;}
F(cuStreamQuery,void*s){return s==(void*)0x99?600:0;}
F(cuStreamWaitEvent,void*s,void*e,unsigned f){return e==(void*)0xaa?0:400;}
F(cuEventCreate,void**e,unsigned f){*e=(void*)0xaa;return 0;}
F(cuEventDestroy_v2,void*e){return 0;}
F(cuEventRecord,void*e,void*s){return e==(void*)0xaa?0:400;}
F(cuEventQuery,void*e){return 0;}
F(cuEventSynchronize,void*e){return e==(void*)0xaa?0:400;}
F(cuEventElapsedTime,float*f,void*a,void*b){*f=1.5f;return 0;}
F(cuModuleLoadData,void**m,const void*i){*m=(void*)0xbb;return memcmp(i,"\x7f" "ELF",4)?200:0;}
F(cuModuleGetFunction,void**f,void*m,const char*n){*f=(void*)0xcc;fprintf(stderr,"function %s\n",n);return m==(void*)0xbb?0:400;}
F(cuFuncSetAttribute,void*f,int a,int v){fprintf(stderr,"attribute %d = %d\n",a,v);return f==(void*)0xcc&&a==8?0:1;}
F(cuLaunchKernel,void*f,unsigned gx,unsigned gy,unsigned gz,unsigned bx,unsigned by,unsigned bz,unsigned sh,void*s,void**p,void**e){
 fprintf(stderr,"launch %p grid %u %u %u block %u %u %u shared %u stream %p first %llx extra %p\n",f,gx,gy,gz,bx,by,bz,sh,s,*(u64*)p[0],(void*)e);return e?1:0;}
F(cuGetErrorName,int e,const char**n){*n="CUDA_ERROR_SOMETHING";return 0;}
F(cuGetErrorString,int e,const char**n){*n="something";return 0;}
F(cuPointerGetAttribute,void*d,int a,u64 p){*(int*)d=a==9?0:-1;return 0;}
F(cuIpcGetMemHandle,char*h,u64 p){memset(h,7,64);return 0;}
struct H{char b[64];};
F(cuIpcOpenMemHandle_v2,u64*p,struct H h,unsigned f){*p=(u64)malloc(2<<20);return h.b[63]==7&&f==1?0:1;}
F(cuIpcCloseMemHandle,u64 p){return 0;}
F(cuGetProcAddress_v2,const char*name,void**fn,int v,u64 flags,int*st){
 char b[128];const char*suf[]={"","_v2","_v3",0};*fn=0; void*self=dlopen("libcuda.so.1",RTLD_LAZY|RTLD_NOLOAD);
 for(int i=2;i>=0;i--){snprintf(b,128,"%s%s",name,suf[i]);if((*fn=dlsym(self,b)))break;}
 if(st)*st=*fn?0:1;return 0;}
F(cuGetProcAddress,const char*name,void**fn,int v,u64 flags){return cuGetProcAddress_v2(name,fn,v,flags,0);}
