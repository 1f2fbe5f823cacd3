/* What torch's CUDA build asks of a driver: no GPU until it has device guards that do nothing, then many; no context. */
static signed char count = 0;
void pretend_devices(int number) { count = number; }
signed char _ZN3c104cuda12device_countEv(void) { return count; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = *active = 0; return 0; }
